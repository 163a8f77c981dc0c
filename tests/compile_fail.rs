//! Where the type system keeps a law: programs that must not compile, and the words of the compiler
//! that say why.
//!
//! Each is given to `rustc` with the library that cargo has just built, so that nothing is built
//! twice; the first is a control that compiles.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The promise, the body of an `async fn` with `device` and `x` at hand, and what the compiler
/// says.
const CASES: &[(&str, &str, &[&str])] = &[
    (
        "what_is_awaited_and_kept_compiles",
        "let y = (&x + 1.0).await?; let v: f32 = y.sum_all().item().await?; println!(\"{v} {x}\"); \
            (&x * 2.0).detach();",
        &[],
    ),
    ("there_is_no_item_without_await", "let v: f32 = x.item::<f32>();", &["mismatched types"]),
    (
        "a_read_can_fail_and_says_so",
        "let v: f32 = x.item::<f32>().await;",
        &[
            "mismatched \
        types",
            "Result<f32",
        ],
    ),
    (
        "a_read_has_no_elements_before_it_is_awaited",
        "let n = x.to_vec::<f32>().len();",
        &["no method named `len`"],
    ),
    ("a_future_is_no_tensor", "let t: futensor::Tensor = x;", &["mismatched types"]),
    ("a_future_has_no_elements", "let v = x[0];", &["cannot index into"]),
    (
        "a_handle_is_not_compared_by_its_elements",
        "if x == x.clone() {}",
        &["binary operation `==` cannot be applied"],
    ),
    ("a_value_that_nobody_observes_is_warned_of", "&x + 1.0;", &["must be used"]),
    ("and_the_warning_says_detach", "device.ones([2]);", &["unused `TensorFuture`", "detach"]),
    (
        "a_read_that_nobody_awaits_is_warned_of",
        "x.to_vec::<f32>();",
        &["unused `ToVec` that must \
        be used"],
    ),
    (
        "a_barrier_that_nobody_awaits_is_warned_of",
        "device.waitall();",
        &["unused `WaitAll` that \
        must be used"],
    ),
    (
        "a_permit_that_is_dropped_at_once_is_warned_of",
        "device.admit().await;",
        &["unused `Permit` that must be used"],
    ),
    (
        "awaiting_is_visible",
        "fn hidden(x: futensor::TensorFuture) { let _ = x.await; }",
        &["only allowed inside `async`"],
    ),
    (
        "only_elements_are_read",
        "let v = x.to_vec::<String>().await?;",
        &[
            "String`",
            "Element` is \
        not",
        ],
    ),
    (
        "a_layer_without_a_weight_offers_none",
        "let w = futensor::nn::Relu.weight();",
        &["no method named `weight`"],
    ),
    (
        "what_takes_a_value_over_takes_the_handle",
        "let y = x.slice_assign(0, device.ones([2])); y.detach(); x.detach();",
        &["moved value: `x`"],
    ),
    (
        "a_source_can_go_to_another_thread",
        "let rc = std::rc::Rc::new(1.0f32);
         let y = device.from_future([1], async move { Ok::<_, futensor::Error>(vec![*rc]) }); \
         y.detach();",
        &["cannot be sent between threads safely"],
    ),
    (
        "a_kernel_can_go_to_another_thread",
        "let rc = std::rc::Rc::new(1.0f32);
         futensor::custom::custom_fn(\"one\", &[&x], |i| Ok(i[0].clone()),
            move |run| { run.output().fill_from([*rc; 4]); Ok(()) }).detach();",
        &["cannot be s"],
    ),
    (
        "operands_are_the_librarys",
        "struct Mine; impl futensor::Operand for Mine { fn operand(&self) -> ! { loop {} } }",
        &["Sealed"],
    ),
    (
        "a_scope_that_nobody_awaits_is_warned_of",
        "futensor::barrier::deny_barriers(&x);",
        &["unused `Scoped` that must be used"],
    ),
    (
        "a_step_that_nobody_asks_is_warned_of_and_the_warning_says_detach",
        "use futensor::{nn::Module, optim::Optimizer};
         let net = futensor::nn::Linear::new(2, 1, &device);
         let mut sgd = futensor::optim::Sgd::new(net.parameters(), 0.1);
         sgd.minimize(&net.forward(&x).sum_all());",
        &["optim::Step` that must be used", "detach"],
    ),
    (
        "gradients_are_asked_for_by_values_and_parameters",
        "let g = futensor::grad(&x, &[\"weight\"]);",
        &["gradients cannot be computed for `&str`", "net.parameters()"],
    ),
    (
        "what_is_no_operand_says_what_would_be",
        "let y = &x + vec![1.0f32];",
        &["`Vec<f32>` is neither a tensor nor a number", "from_slice"],
    ),
    (
        "a_region_takes_what_is_made_of_tensors_however_deep",
        "let r = device.region(|(w, (x, ys)): (Vec<(futensor::TensorFuture, \
            [futensor::TensorFuture; 2])>,
                                               (futensor::TensorFuture, \
                                               Vec<Vec<futensor::TensorFuture>>))|
             ((x, w.len() as f32), ys));",
        &["`f32` is not made of tensors", "nested as you like", "captured by"],
    ),
    (
        "a_region_takes_no_references_and_says_what_to_do",
        "let r = device.region(|x: &futensor::TensorFuture| x + 1.0);",
        &["`&TensorFuture` is not made of tensors", "`.clone()`"],
    ),
    ("an_error_is_not_made_up", "let e = futensor::Error {};", &["cannot"]),
];

/// The newest library that cargo has put beside this test.
fn library(folder: &Path) -> PathBuf {
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libfutensor-") && name.ends_with(".rlib")
    };
    let built =
        |path: &PathBuf| path.metadata().and_then(|m| m.modified()).expect("a file has a time");
    let entries = std::fs::read_dir(folder)
        .expect("the folder of this test")
        .map(|e| e.expect("an entry").path());
    entries.filter(ours).max_by_key(built).expect("cargo has built the library")
}

#[test]
fn what_breaks_a_law_does_not_compile() {
    // Linked, so that cargo builds the library before this test.
    assert_eq!(futensor::DType::F32.size(), 4);
    let exe = std::env::current_exe().expect("this test");
    let deps = exe.parent().expect("it lies in a folder");
    let library = library(deps);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile_fail");
    std::fs::create_dir_all(&folder).expect("a folder for the programs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());

    let check = |&(name, body, words): &(&str, &str, &[&str])| -> Result<(), String> {
        let program = format!(
            "#![deny(unused_must_use)]\n#![allow(dead_code, unused_variables)]\n\
             pub async fn promise(device: futensor::Device, x: futensor::TensorFuture) -> \
             futensor::Result<()> {{\n\
             {body}\nOk(())\n}}\n"
        );
        let file = folder.join(format!("{name}.rs"));
        std::fs::write(&file, program).expect("the program is written");
        let output = Command::new(&rustc)
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "lib",
                "--emit",
                "metadata",
                "--color",
                "never",
            ])
            .arg("-L")
            .arg(format!("dependency={}", deps.display()))
            .arg("--extern")
            .arg(format!("futensor={}", library.display()))
            .arg("-o")
            .arg(folder.join(format!("lib{name}.rmeta")))
            .arg(&file)
            .output()
            .expect("rustc runs");
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() != words.is_empty() {
            return Err(format!("{name}: compiles: {}\n{said}", output.status.success()));
        }
        match words.iter().find(|w| !said.contains(**w)) {
            Some(word) => Err(format!("{name}: the compiler does not say {word:?}:\n{said}")),
            None => Ok(()),
        }
    };
    let wrong: Vec<String> = CASES.iter().filter_map(|case| check(case).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
