// SiLU or tanh-form GELU, by the constant ACTIVATION.
fn activate(x: f32) -> f32 {
//% if ACTIVATION == "silu"
  return x / (1.0 + exp(-x));
//% else
  // tanh overflows to NaN for large arguments on some drivers; beyond 10 it is 1 in f32 anyway.
  let inner = clamp(0.7978845608028654 * (x + 0.044715 * x * x * x), -10.0, 10.0);
  return 0.5 * x * (1.0 + tanh(inner));
//% endif
}
