//! Files of tensors, and values in configuration files: what they hold comes back as it was, and
//! broken ones are told apart.

mod configuration;
mod gguf;
mod python;
mod safetensors;
