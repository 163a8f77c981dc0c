//! Files of tensors: what they hold comes back as it was, and broken ones are told apart.

mod gguf;
mod python;
mod safetensors;
