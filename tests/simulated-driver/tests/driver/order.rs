use crate::Test;
pub const TESTS: &[(&str, Test)] = &[];
