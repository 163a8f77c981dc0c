//! Names and texts of error codes.

use crate::ffi::{Out, Text};
use crate::status::{INVALID_VALUE, Status, TABLE, code};

fn text(
    status: Status,
    to: Out<Text>,
    pick: impl Fn(&(Status, &'static str, &'static str)) -> &'static str,
) -> Status {
    match TABLE.iter().find(|row| row.0 == status) {
        Some(row) => code(to.set(Text::fixed(pick(row)))),
        None => {
            let _ = to.set(Text::null());
            INVALID_VALUE
        }
    }
}

/// `cuGetErrorName`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: Status, to: Out<Text>) -> Status {
    text(error, to, |row| row.1)
}

/// `cuGetErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(error: Status, to: Out<Text>) -> Status {
    text(error, to, |row| row.2)
}
