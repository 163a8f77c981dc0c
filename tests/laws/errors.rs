//! Law 7: errors stay with their value, and say where.

use crate::support::{ALL, Gate, Kind, block_on, identity};
use crate::{Laws, promises};
use futensor::custom::Refusal;
use futensor::{Error, TensorFuture};

pub fn add(laws: &mut Laws) {
    promises!(laws, 7, ALL;
        a_mistake_makes_a_failed_value_that_names_op_shapes_and_line
        every_value_made_from_a_failed_one_has_its_root
        an_error_at_run_time_names_the_line_of_the_call
        a_failed_handle_prints_its_reason
        values_that_do_not_depend_on_it_are_unaffected
        two_devices_in_one_op_are_an_error_that_names_both
        looking_at_an_error_does_not_consume_it
        waitall_returns_detached_errors_once
        waitall_keeps_64_errors_and_counts_the_rest
        a_held_or_dropped_error_is_not_waitalls
        a_failed_value_that_is_detached_later_is_reported);
}

fn refused(x: &TensorFuture, words: &'static str) -> TensorFuture {
    identity("refuse", x, move || Err(Refusal::kernel(words)))
}

fn a_mistake_makes_a_failed_value_that_names_op_shapes_and_line(kind: Kind) {
    let device = kind.device();
    let (x, y) = (device.ones([2, 3]), device.ones([4]));
    let (wrong, line) = (&x * &y, line!());
    let error = wrong.error().expect("known at once");
    assert!(error.is_shape() && wrong.is_ready());
    assert_eq!(
        (wrong.dims(), wrong.dtype(), wrong.device()),
        (x.dims(), x.dtype(), device.clone())
    );
    let here = format!("mul: cannot broadcast [2, 3] with [4] ({}:{line})", file!());
    assert_eq!(error.to_string(), here);
    assert_eq!((error.location().file(), error.location().line()), (file!(), line));

    let (matmul, line) = (x.matmul(&y), line!());
    let error = matmul.error().unwrap();
    assert!(error.op() == "matmul" && error.location().line() == line, "{error}");
    let (cat, line) = (futensor::cat(&[&x, &y], 0), line!());
    let error = cat.error().unwrap();
    assert!(error.op() == "cat" && error.location().line() == line, "{error}");
    let (sum, line) = (x.sum(5), line!());
    let error = sum.error().unwrap();
    assert!(error.is_index() && error.op() == "sum" && error.location().line() == line, "{error}");
    let (read, line) = (x.to_vec::<i64>(), line!());
    let error = block_on(read).unwrap_err();
    assert!(error.is_dtype() && error.location().line() == line, "{error}");
    let (item, line) = (x.item::<f32>(), line!());
    let error = block_on(item).unwrap_err();
    assert!(error.is_shape() && error.location().line() == line, "{error}");
}

fn every_value_made_from_a_failed_one_has_its_root(kind: Kind) {
    let device = kind.device();
    let x = device.ones([2, 3]);
    // One that is known at the call, one that fails as it runs.
    for root in [&x + device.ones([7, 7, 7]), refused(&x, "no")] {
        let chain = ((&root * 2.0).tanh() + &x).sum(1);
        let joined = futensor::cat(&[&x, &root], 0).matmul(device.ones([3, 2]));
        let mut deep = joined.sum_all();
        for i in 0..1000 {
            deep = deep + i;
        }
        let assigned = x.clone().slice_assign((0, ..), root.i(0));
        let error = block_on(&root).unwrap_err();
        for value in [chain, joined, deep, assigned, root.to_device(&kind.device())] {
            let late = block_on(&value).unwrap_err();
            assert!(late.same_root(&error), "{late} is not {error}");
            assert!(block_on(value.to_vec::<f32>()).unwrap_err().same_root(&error));
            assert!(block_on(value.display()).unwrap_err().same_root(&error));
            assert!(value.error().unwrap().same_root(&error));
        }
    }
}

fn an_error_at_run_time_names_the_line_of_the_call(kind: Kind) {
    let device = kind.device();
    let x = device.ones([2]);
    let (bad, line) = (identity("late", &x, || Err(Refusal::kernel("no"))), line!());
    let error = block_on((bad + 1.0).sum_all()).unwrap_err();
    assert_eq!((error.location().file(), error.location().line()), (file!(), line), "{error}");
}

fn a_failed_handle_prints_its_reason(kind: Kind) {
    let device = kind.device();
    let x = device.ones([2, 3]);
    // One that is known at the call, one that fails as it runs, and a value that is made from it.
    let (early, late) = (&x * device.ones([4]), refused(&x, "no luck"));
    let made = &late + 1.0;
    for (value, words) in [(early, "cannot broadcast [2, 3] with [4]"), (made, "no luck")] {
        let error = block_on(&value).unwrap_err();
        let text = format!("TensorFuture(float32 [2, 3] on {device}, failed: {error})");
        assert!(text.contains(words), "{text}");
        assert_eq!((value.to_string(), format!("{value:?}")), (text.clone(), text));
    }
    assert!(block_on(&x).is_ok() && x.to_string().ends_with(", ready)"), "{x}");
}

fn values_that_do_not_depend_on_it_are_unaffected(kind: Kind) {
    let device = kind.device();
    let x = device.ones([1000]);
    let mut good = Vec::new();
    for i in 0..50 {
        let bad = refused(&x, "no") + i;
        let fine = &x + i;
        good.push((fine.sum_all(), bad));
    }
    for (i, (fine, bad)) in good.into_iter().enumerate() {
        assert_eq!(block_on(fine.item::<f32>()).unwrap(), 1000.0 * (i + 1) as f32);
        assert!(block_on(bad).is_err());
    }
}

fn two_devices_in_one_op_are_an_error_that_names_both(kind: Kind) {
    let (one, two) = (kind.device(), kind.device());
    let wrong = one.ones([2]) + two.ones([2]);
    let error = wrong.error().unwrap();
    assert!(error.is_device(), "{error}");
    assert!(
        error.message().contains(one.name()) && error.message().contains(two.name()),
        "{error}"
    );
    let right = one.ones([2]) + two.ones([2]).to_device(&one);
    assert_eq!(block_on(right.to_vec::<f32>()).unwrap(), [2.0; 2]);
}

fn looking_at_an_error_does_not_consume_it(kind: Kind) {
    let device = kind.device();
    let bad = refused(&device.ones([2]), "no");
    let first = block_on(&bad).unwrap_err();
    for _ in 0..3 {
        assert!(block_on(&bad).unwrap_err().same_root(&first));
        assert!(block_on(bad.wait_to_read()).unwrap_err().same_root(&first));
        assert!(bad.error().unwrap().same_root(&first));
        assert!(bad.clone().error().unwrap().same_root(&first));
    }
}

fn waitall_returns_detached_errors_once(kind: Kind) {
    let device = kind.device();
    let x = device.ones([2]);
    refused(&x, "one").detach();
    let error = block_on(device.waitall()).unwrap_err();
    assert!(error.is_kernel() && error.message() == "one" && error.errors().len() == 1, "{error}");
    block_on(device.waitall()).unwrap();
    refused(&x, "two").detach();
    refused(&x, "two").detach();
    // Giving up a wait loses no error.
    drop(device.waitall());
    let error = block_on(device.waitall()).unwrap_err();
    assert_eq!(error.errors().len(), 2, "{error}");
    assert!(error.errors().iter().all(|e: &Error| e.message() == "two"));
    block_on(device.waitall()).unwrap();
}

fn waitall_keeps_64_errors_and_counts_the_rest(kind: Kind) {
    let device = kind.device();
    let x = device.ones([2]);
    for _ in 0..100 {
        refused(&x, "no").detach();
    }
    let error = block_on(device.waitall()).unwrap_err();
    assert_eq!(error.errors().len(), 64);
    assert!(error.message().contains("100"), "{error}");
    block_on(device.waitall()).unwrap();
}

fn a_held_or_dropped_error_is_not_waitalls(kind: Kind) {
    let device = kind.device();
    let x = device.ones([2]);
    let held = refused(&x, "held");
    let gate = Gate::new();
    let running = identity("refuse", &gate.op(&x), || Err(Refusal::kernel("dropped")));
    gate.wait_entered(1);
    drop(running);
    gate.open();
    let wrong = &x + device.ones([3]);
    block_on(device.waitall()).unwrap();
    assert!(block_on(held).is_err() && block_on(wrong).is_err());
    block_on(device.waitall()).unwrap();
}

fn a_failed_value_that_is_detached_later_is_reported(kind: Kind) {
    let device = kind.device();
    let bad = refused(&device.ones([2]), "no");
    let error = block_on(&bad).unwrap_err();
    bad.detach();
    bad.detach();
    drop(bad);
    let all = block_on(device.waitall()).unwrap_err();
    assert!(all.same_root(&error) && all.errors().len() == 1, "{all}");
    (device.ones([2]) + device.ones([3])).detach();
    assert!(block_on(device.waitall()).unwrap_err().is_shape());
    block_on(device.waitall()).unwrap();
}
