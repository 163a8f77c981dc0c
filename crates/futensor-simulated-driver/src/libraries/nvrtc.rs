//! The stand-in for NVRTC: g++ says whether a source compiles, and the source itself is the
//! "CUBIN".
//!
//! g++ accepts C++ that NVRTC rejects; a check with the real NVRTC has to stay beside this one.

use crate::ffi::{Handle, In, Kind, Out, Text, copy_text, handle, id};
use crate::kernels::compile::Program;
use crate::libraries::kept;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::{LazyLock, Mutex, MutexGuard, Once};

/// An `nvrtcResult`.
pub type Result = u32;
const SUCCESS: Result = 0;
const INVALID_INPUT: Result = 3;
const INVALID_PROGRAM: Result = 4;
const INVALID_OPTION: Result = 5;
const COMPILATION: Result = 6;

struct Unit {
    program: Program,
    /// Compiled for a real architecture: only then is there a CUBIN.
    real: bool,
    compiled: bool,
    log: String,
}

static UNITS: LazyLock<Mutex<(u64, BTreeMap<u64, Unit>)>> =
    LazyLock::new(|| Mutex::new((1, BTreeMap::new())));

fn units() -> MutexGuard<'static, (u64, BTreeMap<u64, Unit>)> {
    static END: Once = Once::new();
    kept(&UNITS, &END)
}

fn with(program: Handle, body: impl FnOnce(&mut Unit) -> Result) -> Result {
    let Ok(id) = id(Kind::Program, program) else { return INVALID_PROGRAM };
    let mut units = units();
    match units.1.get_mut(&id) {
        Some(unit) => body(unit),
        None => INVALID_PROGRAM,
    }
}

/// `nvrtcVersion`: one that NVIDIA's never had, so that nobody takes what this one makes for
/// theirs.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: Out<i32>, minor: Out<i32>) -> Result {
    let (here, there) = version();
    if major.set(here).and(minor.set(there)).is_ok() { SUCCESS } else { INVALID_INPUT }
}

/// The compiler's version of CUDA.
pub fn version() -> (i32, i32) {
    crate::driver::devices::version("FUTENSOR_SIM_NVRTC", (0, 1))
}

/// `nvrtcGetErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(result: Result) -> Text {
    Text::fixed(match result {
        SUCCESS => "NVRTC_SUCCESS\0",
        INVALID_INPUT => "NVRTC_ERROR_INVALID_INPUT\0",
        INVALID_PROGRAM => "NVRTC_ERROR_INVALID_PROGRAM\0",
        INVALID_OPTION => "NVRTC_ERROR_INVALID_OPTION\0",
        COMPILATION => "NVRTC_ERROR_COMPILATION\0",
        _ => "NVRTC_ERROR_INTERNAL_ERROR\0",
    })
}

/// `nvrtcCreateProgram`. Headers are refused: the wheels that clients use come without any.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCreateProgram(
    program: Out<Handle>,
    source: Text,
    name: Text,
    headers: i32,
    _: Handle,
    _: Handle,
) -> Result {
    let (Ok(source), 0) = (source.read(), headers) else { return INVALID_INPUT };
    let name = name.read().unwrap_or_else(|_| "default_program".to_owned());
    let unit = Unit {
        program: Program { source, name, defines: Vec::new(), arch: 750 },
        real: false,
        compiled: false,
        log: String::new(),
    };
    let mut units = units();
    let number = units.0;
    units.0 += 1;
    units.1.insert(number, unit);
    if program.set(handle(Kind::Program, number)).is_ok() { SUCCESS } else { INVALID_INPUT }
}

/// `nvrtcDestroyProgram`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcDestroyProgram(program: Out<Handle>) -> Result {
    let Ok(Ok(number)) = program.get().map(|program| id(Kind::Program, program)) else {
        return INVALID_PROGRAM;
    };
    let mut units = units();
    if units.1.remove(&number).is_some() { SUCCESS } else { INVALID_PROGRAM }
}

/// Takes an option in. Macros and the architecture matter; what tunes code generation does not.
fn option(unit: &mut Unit, option: &str, next: Option<&String>) -> std::result::Result<bool, ()> {
    let (key, value) =
        option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
    match key {
        "--gpu-architecture" | "-arch" => {
            let value = value.or(next.map(String::as_str)).ok_or(())?;
            let (kind, number) = value.split_once('_').ok_or(())?;
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            unit.program.arch = digits.parse::<u32>().map_err(|_| ())? * 10;
            unit.real = kind == "sm";
            Ok(!option.contains('='))
        }
        "--define-macro" | "-D" => {
            let define = option.split_once('=').filter(|_| key != "-D").map(|(_, define)| define);
            let define = define.or(next.map(String::as_str)).ok_or(())?;
            unit.program.defines.push(format!("-D{define}"));
            Ok(!(option.contains('=') && key != "-D"))
        }
        _ if key.starts_with("-D") => {
            unit.program.defines.push(option.to_owned());
            Ok(false)
        }
        _ if option.starts_with('-') => Ok(false),
        _ => Err(()),
    }
}

/// `nvrtcCompileProgram`: g++'s messages are the log.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCompileProgram(program: Handle, count: i32, options: In<Text>) -> Result {
    let Ok(options) = options.list(count.max(0) as usize) else { return INVALID_INPUT };
    let options: Vec<String> = options.iter().filter_map(|option| option.read().ok()).collect();
    let mut copy = None;
    let result = with(program, |unit| {
        let mut skip = false;
        for (i, text) in options.iter().enumerate() {
            if std::mem::take(&mut skip) {
                continue;
            }
            match option(unit, text, options.get(i + 1)) {
                Ok(took_next) => skip = took_next,
                Err(()) => {
                    unit.log = format!("nvrtc: error: invalid value for option: {text}");
                    return INVALID_OPTION;
                }
            }
        }
        copy = Some(unit.program.clone());
        SUCCESS
    });
    let Some(copy) = copy else { return result };
    // Without the lock: other threads may compile other programs' options, ask for logs and so on
    // meanwhile.
    let compiled = copy.compile();
    with(program, |unit| match compiled {
        Ok(_) => {
            unit.compiled = true;
            SUCCESS
        }
        Err(log) => {
            unit.log = log;
            COMPILATION
        }
    })
}

fn log(unit: &Unit) -> &str {
    &unit.log
}

/// `nvrtcGetProgramLogSize`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLogSize(program: Handle, size: Out<usize>) -> Result {
    with(
        program,
        |unit| if size.set(log(unit).len() + 1).is_ok() { SUCCESS } else { INVALID_INPUT },
    )
}

/// `nvrtcGetProgramLog`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLog(program: Handle, to: *mut c_char) -> Result {
    with(program, |unit| {
        copy_text(log(unit), to, log(unit).len() + 1);
        SUCCESS
    })
}

fn size(program: Handle, size: Out<usize>, cubin: bool) -> Result {
    with(program, |unit| {
        let bytes = match (unit.compiled, cubin && !unit.real) {
            (false, _) => return INVALID_PROGRAM,
            // "The size is 0 if the value specified to -arch is a virtual architecture" (NVRTC
            // manual).
            (true, true) => 0,
            (true, false) => unit.program.image(version()).len(),
        };
        if size.set(bytes).is_ok() { SUCCESS } else { INVALID_INPUT }
    })
}

fn bytes(program: Handle, to: Out<u8>, cubin: bool) -> Result {
    with(program, |unit| {
        if !unit.compiled || cubin && !unit.real {
            return INVALID_PROGRAM;
        }
        if to.set_all(&unit.program.image(version())).is_ok() { SUCCESS } else { INVALID_INPUT }
    })
}

/// `nvrtcGetCUBINSize`: 0 unless `-arch=sm_...` was given.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBINSize(program: Handle, to: Out<usize>) -> Result {
    size(program, to, true)
}

/// `nvrtcGetCUBIN`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBIN(program: Handle, to: Out<u8>) -> Result {
    bytes(program, to, true)
}

/// `nvrtcGetPTXSize`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetPTXSize(program: Handle, to: Out<usize>) -> Result {
    size(program, to, false)
}

/// `nvrtcGetPTX`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetPTX(program: Handle, to: Out<u8>) -> Result {
    bytes(program, to, false)
}

const ARCHS: [i32; 4] = [75, 80, 90, 100];

/// `nvrtcGetNumSupportedArchs`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetNumSupportedArchs(count: Out<i32>) -> Result {
    if count.set(ARCHS.len() as i32).is_ok() { SUCCESS } else { INVALID_INPUT }
}

/// `nvrtcGetSupportedArchs`.
#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetSupportedArchs(to: Out<i32>) -> Result {
    if to.set_all(&ARCHS).is_ok() { SUCCESS } else { INVALID_INPUT }
}
