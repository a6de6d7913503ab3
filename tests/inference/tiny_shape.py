"""A shape as those of inference.shapes, with what every format needs: rows of a multiple of 256 weights."""

TINY_SHAPE = {
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "tie_word_embeddings": True,
}
