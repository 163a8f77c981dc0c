//! The language and its compiler: what of CUDA C is there, and how images and messages come out.

use crate::Test;
use crate::rig::{code, compile, context, grid, kernel, module};
use cudarc::driver::PushKernelArg;
use futensor_simulated_driver::Simulator;

pub const TESTS: &[(&str, Test)] = &[
    ("module_variables_are_found_with_their_size_and_can_be_written", variables),
    ("templates_namespaces_and_macros_compile", language),
    ("half_conversions_round_to_nearest_even_for_all_bits", halves),
    ("conversions_to_integers_saturate", saturation),
    ("a_struct_by_value_arrives_whole", structs),
    ("a_syntax_error_is_a_compile_error_with_its_line", syntax_error),
    ("a_cubin_needs_a_real_architecture", cubin),
    ("an_unknown_kernel_is_not_found", unknown_kernel),
];

fn variables(_: &Simulator) {
    use cudarc::driver::{result, sys};
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let source = r#"__constant__ float table[5] = {1, 2, 3, 4, 5};
        extern "C" __global__ void k(float* out) { out[threadIdx.x] = table[threadIdx.x]; }"#;
    let image = compile(source).unwrap();
    // SAFETY: the image is alive; addresses and sizes are those given; arguments match the kernel.
    unsafe {
        let mut module = std::ptr::null_mut();
        sys::cuModuleLoadData(&mut module, image.as_bytes().unwrap().as_ptr().cast())
            .result()
            .unwrap();
        let (address, bytes) = result::module::get_global(module, c"table".into()).unwrap();
        assert_eq!(bytes, 20);
        result::memcpy_htod_async(address + 8, &[30.0f32], stream.cu_stream()).unwrap();
        let k = result::module::get_function(module, c"k".into()).unwrap();
        let out = stream.alloc_zeros::<f32>(5).unwrap();
        let mut at = cudarc::driver::DevicePtr::device_ptr(&out, &stream).0;
        let mut arguments = [(&raw mut at).cast()];
        result::launch_kernel(k, (1, 1, 1), (5, 1, 1), 0, stream.cu_stream(), &mut arguments)
            .unwrap();
        assert_eq!(stream.clone_dtoh(&out).unwrap(), [1.0, 2.0, 30.0, 4.0, 5.0]);
        assert_eq!(code(result::module::get_global(module, c"other".into())), 500);
        sys::cuModuleUnload(module).result().unwrap();
    }
}

fn language(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let module = module(
        &context,
        r#"
        #define KERNEL(name, T) extern "C" __global__ void name(T* out, const T* a, int n)
        #define FOR_EACH(i, n) \
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
                 i += gridDim.x * blockDim.x)
        namespace inner {
            template <class T> struct Twice { __device__ static T of(T x) { return x + x; } };
        }
        __constant__ float table[2] = {10.0f, 20.0f};
        template <class T, class F>
        __device__ __forceinline__ void each(T* out, const T* a, int n, F f) {
            #pragma unroll 4
            FOR_EACH(i, n) out[i] = f(a[i]);
        }
        KERNEL(doubled, double) {
            each(out, a, n, [](double x) { return inner::Twice<double>::of(x); });
        }
        KERNEL(looked_up, float) {
            each(out, a, n, [](float x) { return table[x > 0] + max(x, 0.5f); });
        }
        "#,
    );
    let doubled = module.load_function("doubled").unwrap();
    let looked_up = module.load_function("looked_up").unwrap();
    let a = stream.clone_htod(&[1.5f64, -2.0]).unwrap();
    let b = stream.clone_htod(&[1.0f32, -1.0]).unwrap();
    let (mut x, mut y) =
        (stream.alloc_zeros::<f64>(2).unwrap(), stream.alloc_zeros::<f32>(2).unwrap());
    // SAFETY: arguments match the kernels.
    unsafe {
        stream.launch_builder(&doubled).arg(&mut x).arg(&a).arg(&2i32).launch(grid(1, 1)).unwrap();
        stream
            .launch_builder(&looked_up)
            .arg(&mut y)
            .arg(&b)
            .arg(&2i32)
            .launch(grid(1, 32))
            .unwrap();
    }
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [3.0, -4.0]);
    assert_eq!(stream.clone_dtoh(&y).unwrap(), [21.0, 10.5]);
}

fn halves(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"
        #ifndef FUTENSOR_SIM
        #error the hook is missing
        #endif
        extern "C" __global__ void k(
            const float* a, unsigned short* f16, unsigned short* bf16, float* back, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) { f16[i] = futsim_f32_to_f16(a[i]); bf16[i] = futsim_f32_to_bf16(a[i]); }
            if (i < 65536) {
                back[i] = futsim_f16_to_f32(i); back[65536 + i] = futsim_bf16_to_f32(i);
            }
        }"#,
    );
    // Every half and bfloat16, the midpoints between neighbours, and the floats beside the
    // midpoints.
    let mut a: Vec<f32> = Vec::new();
    for bits in 0..=u16::MAX {
        for x in [half::f16::from_bits(bits).to_f32(), half::bf16::from_bits(bits).to_f32()] {
            if x.is_finite() {
                let middle16 = f32::from_bits(x.to_bits().wrapping_add(1 << 12));
                let middle = f32::from_bits(x.to_bits().wrapping_add(1 << 15));
                a.extend([
                    x,
                    middle16,
                    middle16.next_up(),
                    middle16.next_down(),
                    middle,
                    middle.next_up(),
                ]);
                a.push(middle.next_down());
                a.push(x + 2.98e-8);
            }
        }
    }
    a.extend([f32::INFINITY, f32::NEG_INFINITY, 65519.996, 65520.0, f32::MAX, f32::MIN_POSITIVE]);
    a.retain(|x| !x.is_nan());
    let n = a.len();
    let a_device = stream.clone_htod(&a).unwrap();
    let mut f16 = stream.alloc_zeros::<u16>(n).unwrap();
    let mut bf16 = stream.alloc_zeros::<u16>(n).unwrap();
    let mut back = stream.alloc_zeros::<f32>(2 * 65536).unwrap();
    let (mut launch, count) = (stream.launch_builder(&k), n as i32);
    launch.arg(&a_device).arg(&mut f16).arg(&mut bf16).arg(&mut back).arg(&count);
    // SAFETY: arguments match the kernel.
    unsafe { launch.launch(grid(n.div_ceil(256) as u32, 256)) }.unwrap();
    let (f16, bf16, back) = (
        stream.clone_dtoh(&f16).unwrap(),
        stream.clone_dtoh(&bf16).unwrap(),
        stream.clone_dtoh(&back).unwrap(),
    );
    for (i, &x) in a.iter().enumerate() {
        assert_eq!(f16[i], half::f16::from_f32(x).to_bits(), "f16 of {x:e}");
        assert_eq!(bf16[i], half::bf16::from_f32(x).to_bits(), "bf16 of {x:e}");
    }
    for bits in 0..=u16::MAX {
        let (x, y) = (half::f16::from_bits(bits).to_f32(), half::bf16::from_bits(bits).to_f32());
        assert!(
            back[bits as usize] == x || x.is_nan() && back[bits as usize].is_nan(),
            "f16 {bits:#x}"
        );
        assert!(
            back[65536 + bits as usize] == y || y.is_nan() && back[65536 + bits as usize].is_nan()
        );
    }
}

fn saturation(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"extern "C" __global__ void k(const float* a, int* i32, unsigned* u32, int n) {
            for (int i = 0; i < n; i++) {
                i32[i] = __float2int_rz(a[i]); u32[i] = __float2uint_rn(a[i]);
            }
        }"#,
    );
    let a = [f32::NAN, 3e9, -3e9, 2.5, -2.5, f32::INFINITY, 4294967040.0];
    let a_device = stream.clone_htod(&a).unwrap();
    let mut i32s = stream.alloc_zeros::<i32>(a.len()).unwrap();
    let mut u32s = stream.alloc_zeros::<u32>(a.len()).unwrap();
    let (mut launch, count) = (stream.launch_builder(&k), a.len() as i32);
    launch.arg(&a_device).arg(&mut i32s).arg(&mut u32s).arg(&count);
    // SAFETY: arguments match the kernel.
    unsafe { launch.launch(grid(1, 1)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&i32s).unwrap(), a.map(|x| x as i32));
    assert_eq!(
        stream.clone_dtoh(&u32s).unwrap(),
        [0, 3_000_000_000, 0, 2, 0, u32::MAX, 4294967040]
    );
}

/// As the kernel's `Arguments`.
#[repr(C)]
struct Arguments {
    out: u64,
    n: i32,
    inputs: [u64; 3],
    scale: f64,
}

// SAFETY: the layout is C's and the same as in the source.
unsafe impl cudarc::driver::DeviceRepr for Arguments {}

fn structs(simulator: &Simulator) {
    use cudarc::driver::DevicePtr;
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let other = context.new_stream().unwrap();
    let k = kernel(
        &context,
        r#"
        struct Arguments {
            double* __restrict__ out; int n; const double* inputs[3]; double scale;
        };
        extern "C" __global__ void k(const Arguments a) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < a.n) a.out[i] = (a.inputs[0][i] + a.inputs[1][i] + a.inputs[2][i]) * a.scale;
        }"#,
    );
    let inputs = [1.0, 10.0, 100.0].map(|x| stream.clone_htod(&[x, 2.0 * x, 3.0 * x]).unwrap());
    let out = stream.alloc_zeros::<f64>(3).unwrap();
    let address = |slice: &cudarc::driver::CudaSlice<f64>| slice.device_ptr(&stream).0;
    let arguments = Arguments {
        out: address(&out),
        n: 3,
        inputs: [0, 1, 2].map(|i| address(&inputs[i])),
        scale: 0.5,
    };
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&arguments).launch(grid(1, 32)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&out).unwrap(), [55.5, 111.0, 166.5]);

    // The race check sees through the struct: reads beside a read are no race, a write beside one
    // is.
    other.synchronize().unwrap();
    let two_reads = Arguments { out: address(&out), ..arguments };
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&two_reads).launch(grid(1, 32)) }.unwrap();
    let _ = other.clone_dtoh(&inputs[1]).unwrap();
    assert_eq!(simulator.report(), "");
    let _ = other.clone_dtoh(&out).unwrap();
    assert_eq!(simulator.count("race"), 1, "{}", simulator.report());
    simulator.clear_report();
    context.synchronize().unwrap();
}

fn syntax_error(_: &Simulator) {
    let error =
        compile("extern \"C\" __global__ void k(float* out) {\n  out[0] = 1.0f\n}\n").unwrap_err();
    let cudarc::nvrtc::CompileError::CompileError { nvrtc, log, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(nvrtc.0 as u32, 6);
    assert!(log.to_string_lossy().contains(":2:"), "{log:?}");
    assert!(log.to_string_lossy().contains("expected"), "{log:?}");
}

fn cubin(_: &Simulator) {
    use cudarc::nvrtc::{Ptx, result, sys};
    let source = c"extern \"C\" __global__ void k(int* x) { *x = VALUE; }";
    let get = |options: &[&str]| {
        let program = result::create_program(source, Some(c"k.cu")).unwrap();
        // SAFETY: the program is alive; the buffer has the size that the library gave.
        unsafe {
            result::compile_program(program, options).unwrap();
            let mut size = 0;
            sys::nvrtcGetCUBINSize(program, &mut size).result().unwrap();
            let mut bytes = vec![0u8; size];
            if size > 0 {
                sys::nvrtcGetCUBIN(program, bytes.as_mut_ptr().cast()).result().unwrap();
            }
            result::destroy_program(program).unwrap();
            bytes
        }
    };
    assert!(get(&["--gpu-architecture=compute_90", "-DVALUE=42"]).is_empty());
    let bytes = get(&["--gpu-architecture=sm_90", "--define-macro=VALUE=42", "--fmad=false"]);
    let context = context(0);
    let stream = context.default_stream();
    let k = context.load_module(Ptx::from_binary(bytes)).unwrap().load_function("k").unwrap();
    let mut x = stream.alloc_zeros::<i32>(1).unwrap();
    // SAFETY: arguments match the kernel.
    unsafe { stream.launch_builder(&k).arg(&mut x).launch(grid(1, 1)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&x).unwrap(), [42]);
}

fn unknown_kernel(simulator: &Simulator) {
    let context = context(0);
    let module = module(&context, "extern \"C\" __global__ void k() {}");
    assert_eq!(code(module.load_function("other").map(drop)), 500);
    let image = cudarc::nvrtc::Ptx::from_src(".version 8.0\n.target sm_90");
    assert_eq!(code(context.load_module(image).map(drop)), 218);
    assert_eq!(simulator.count("misuse"), 1);
    simulator.clear_report();
}
