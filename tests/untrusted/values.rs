//! Files of tensors: GGUF, safetensors, NumPy's and PyTorch's.

use super::Target;
use futensor::{CpuOptions, Device, Error, TensorFuture, block_on, gguf, npy, pth, safetensors};
use std::sync::OnceLock;

/// Written by `tests/reference/gguf_file.py`.
const REFERENCE: &[u8] = include_bytes!("../reference/reference.gguf");

pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::cpu_with(CpuOptions::default().threads(1)))
}

/// Checks an error of loading a file.
fn refused(error: &Error) {
    assert!(error.is_source() && error.op() == "load", "{error}");
    assert!(!error.message().contains("panicked"), "{error}");
}

/// Checks that all values are there, and are no larger than the file.
fn whole<'a>(values: impl Iterator<Item = &'a TensorFuture>, bytes: &[u8]) {
    let mut sum = 0;
    for x in values {
        assert!(block_on(x.clone()).is_ok(), "{:?}", x.error());
        sum += x.numel() * x.dtype().size();
    }
    assert!(sum <= 2 * bytes.len(), "{sum} bytes of a file of {}", bytes.len());
}

fn gguf(bytes: &[u8]) -> bool {
    let all =
        block_on(async { gguf::open_bytes(bytes.to_vec()).await?.load(device()).all().await });
    match &all {
        Ok(all) => whole(all.values().map(|weight| weight.value()), bytes),
        Err(error) => refused(error),
    }
    all.is_ok()
}

fn safetensors(bytes: &[u8]) -> bool {
    let all = block_on(safetensors::load_bytes(bytes.to_vec(), device()).all());
    match &all {
        Ok(all) => whole(all.values(), bytes),
        Err(error) => refused(error),
    }
    all.is_ok()
}

/// GGUF files: the reference file and a small one.
pub const GGUF: Target = Target {
    name: "gguf",
    run: gguf,
    corpus: || vec![REFERENCE.to_vec(), small()],
    words: &["GGUF", "general.alignment"],
    inputs: 600,
    memory: (4 << 20, 16),
};

/// A file with a pair of each type and three tensors.
fn small() -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend([3u64.to_le_bytes(), 4u64.to_le_bytes()].concat());
    let text = |x: &str| [&(x.len() as u64).to_le_bytes()[..], x.as_bytes()].concat();
    let pair =
        |key: &str, code: u32, value: &[u8]| [&text(key)[..], &code.to_le_bytes(), value].concat();
    out.extend(pair("a", 8, &text("text")));
    out.extend(pair("general.alignment", 4, &32u32.to_le_bytes()));
    let list = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text("x"), &text("")].concat();
    out.extend(pair("b", 9, &list));
    let lists = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &list].concat();
    out.extend(pair("c", 9, &lists));
    for (name, dims, code, start) in
        [("u", &[2u64, 3][..], 0u32, 0u64), ("v", &[32, 1], 8, 32), ("w", &[4], 1, 96)]
    {
        out.extend(text(name));
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(code.to_le_bytes());
        out.extend(start.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(32) + 128, 1);
    out
}

/// Small safetensors files.
pub const SAFETENSORS: Target = Target {
    name: "safetensors",
    run: safetensors,
    corpus: || {
        let file = |header: &str, data: usize| {
            let mut text = header.as_bytes().to_vec();
            text.resize(text.len().next_multiple_of(8), b' ');
            [&(text.len() as u64).to_le_bytes()[..], &text, &vec![0; data]].concat()
        };
        vec![
            file("{}", 0),
            file(
                r#"{"__metadata__":{"format":"pt"},
                "fc.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
                "flags":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]},
                "n":{"dtype":"U8","shape":[],"data_offsets":[10,11]}}"#,
                11,
            ),
            file(
                r#"{"a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},
                "b":{"dtype":"I64","shape":[2],"data_offsets":[12,28]},
                "c":{"dtype":"BF16","shape":[0,7],"data_offsets":[28,28]}}"#,
                28,
            ),
        ]
    },
    words: &[
        "\"F32\"",
        "\"F64\"",
        "\"I32\"",
        "\"dtype\":",
        "\"shape\":",
        "\"data_offsets\":",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"",
    ],
    inputs: 1500,
    memory: (4 << 20, 64),
};

fn npy(bytes: &[u8]) -> bool {
    let x = block_on(npy::load_bytes(bytes.to_vec(), device()));
    match &x {
        Ok(x) => whole([x].into_iter(), bytes),
        Err(error) => refused(error),
    }
    x.is_ok()
}

fn npz(bytes: &[u8]) -> bool {
    let all = block_on(npy::load_npz_bytes(bytes.to_vec(), device()).all());
    if let Err(error) = &all {
        refused(error);
    }
    all.is_ok()
}

fn pth(bytes: &[u8]) -> bool {
    let all = block_on(pth::load_bytes(bytes.to_vec(), device()).all());
    if let Err(error) = &all {
        refused(error);
    }
    all.is_ok()
}

/// Files of `tests/reference/python_files`.
macro_rules! python_files {
    ($($file:literal),*) => {
        || vec![$(include_bytes!(concat!("../reference/python_files/", $file)).to_vec()),*]
    };
}

/// Arrays of NumPy.
pub const NPY: Target = Target {
    name: "npy",
    run: npy,
    corpus: python_files!("float64_big.npy", "int32_columns.npy", "version3.npy", "bool.npy"),
    words: &["'descr'", "'<f4'", "'>i8'", "'fortran_order'", "True", "False", "'shape'", "(", ")"],
    inputs: 1500,
    memory: (4 << 20, 64),
};

/// Archives of arrays.
pub const NPZ: Target = Target {
    name: "npz",
    run: npz,
    corpus: python_files!("plain.npz", "compressed.npz"),
    words: &["PK\x03\x04", "PK\x01\x02", "PK\x05\x06", ".npy"],
    inputs: 600,
    // A compressed byte may stand for 1,032.
    memory: (4 << 20, 1100),
};

/// What PyTorch saved.
pub const PTH: Target = Target {
    name: "pth",
    run: pth,
    corpus: python_files!("views.pth", "checkpoint.pth", "protocol4.pth", "list.pth", "evil.pth"),
    words: &[
        "PK\x03\x04",
        "PK\x01\x02",
        "data.pkl",
        "torch._utils\n_rebuild_tensor_v2\n",
        "Q",
        "R",
    ],
    inputs: 600,
    memory: (4 << 20, 1100),
};
