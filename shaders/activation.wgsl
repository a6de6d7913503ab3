// What a feed-forward part makes of its two projections, by the constant ACTIVATION.
fn gated(gate: f32, up: f32) -> f32 {
//% if ACTIVATION == "clamped_swiglu"
  let most = min(gate, ${LIMIT});
  return (clamp(up, -${LIMIT}, ${LIMIT}) + 1.0) * most / (1.0 + exp(-${ALPHA} * most));
//% elif ACTIVATION == "silu"
  return gate / (1.0 + exp(-gate)) * up;
//% else
  // tanh-form GELU. tanh overflows to NaN for large arguments on some drivers; beyond 10 it is 1 in f32 anyway.
  let inner = clamp(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate), -10.0, 10.0);
  return 0.5 * gate * (1.0 + tanh(inner)) * up;
//% endif
}
