//! The programs. Each is as small as can be, since what it says is said of every order of its
//! threads.

use crate::support::{Letter, device, large, nothing_stays, poll_once, soon, values};
use futensor::block_on;
use shuttle::thread;

/// What nobody observes is let go, at whatever moment of its being taken up the last handle goes.
pub fn drops_beside_take_up() {
    let device = device(|o| o);
    let x = device.from_future([2], Letter::default());
    let mut y = &x + 1.0;
    for _ in 0..2 {
        y = &y + 1.0;
    }
    drop(x);
    drop(y);
    nothing_stays(device);
}

pub fn drops_of_a_wide_graph() {
    let device = device(|o| o.inline(false));
    let letter = Letter::default();
    let x = device.from_future([2], letter.clone());
    let (a, b) = (&x + 1.0, &x * 2.0);
    let kept = &a + &b;
    let other = &b - &x;
    let dropper = thread::spawn(move || drop((x, b, other)));
    drop(a);
    letter.send(vec![1.0, 2.0]);
    assert_eq!(values(&kept), [4.0, 7.0]);
    drop((kept, letter));
    dropper.join().unwrap();
    nothing_stays(device);
}

pub fn an_await_that_is_given_up_beside_its_end() {
    let device = device(|o| o);
    let x = device.arange(0.0f32, 2.0, 1.0);
    let y = &x + 1.0;
    let z = large(&y);
    let other = {
        let (y, z) = (y.clone(), z.clone());
        thread::spawn(move || {
            poll_once(z.wait_to_read());
            poll_once(y);
            poll_once(z);
        })
    };
    assert_eq!(values(&z), [1.0, 2.0]);
    other.join().unwrap();
    drop((x, y, z));
    nothing_stays(device);
}

pub fn two_awaits_of_one_value() {
    let device = device(|o| o);
    let x = device.arange(0.0f32, 2.0, 1.0);
    let y = &x + 1.0;
    let z = large(&(&y * 2.0));
    let waits = [z.clone(), y.clone()].map(|value| thread::spawn(move || values(&value)));
    assert_eq!(values(&z), [2.0, 4.0]);
    drop((x, y, z));
    let got = waits.map(|wait| wait.join().unwrap());
    assert_eq!(got, [[2.0, 4.0], [1.0, 2.0]]);
    nothing_stays(device);
}

/// `ready` ends when what is queued is dropped.
pub fn ready_beside_cancellation() {
    let device = device(|o| o.queue_ops(1));
    let x = device.from_future([2], Letter::default());
    let (y, z) = (&x + 1.0, &x * 2.0);
    let dropper = thread::spawn(move || drop((x, y, z)));
    block_on(device.ready());
    dropper.join().unwrap();
    nothing_stays(device);
}

/// So does `admit`, for each who asks, one after the other.
pub fn admit_beside_cancellation() {
    let device = device(|o| o.queue_ops(1).permits(1));
    let x = device.from_future([2], Letter::default());
    let (y, z) = (&x + 1.0, &x * 2.0);
    let other = {
        let device = device.clone();
        thread::spawn(move || drop(block_on(device.admit())))
    };
    let dropper = thread::spawn(move || drop((x, y, z)));
    drop(block_on(device.admit()));
    dropper.join().unwrap();
    other.join().unwrap();
    assert!(device.try_admit().is_some());
    nothing_stays(device);
}

/// `waitall` ends, and what was enqueued before it is there then.
pub fn waitall_beside_enqueueing() {
    let device = device(|o| o);
    let x = device.arange(0.0f32, 2.0, 1.0);
    let before = [&x + 1.0, large(&x)];
    let other = {
        let x = x.clone();
        thread::spawn(move || {
            (&x * 3.0).detach();
            let y = large(&(&x - 1.0));
            drop(&y + 1.0);
            y
        })
    };
    block_on(device.waitall()).unwrap();
    assert!(before.iter().all(|value| value.is_ready()));
    assert_eq!(values(&other.join().unwrap()), [-1.0, 0.0]);
    drop((x, before));
    nothing_stays(device);
}

pub fn sources_that_come_beside_drops() {
    let device = device(|o| o);
    let letters = [Letter::default(), Letter::default()];
    let [x, gone] = letters.clone().map(|letter| device.from_future([2], letter));
    let y = &x + 1.0;
    let z = &y * 2.0;
    let lost = &gone + &x;
    let sender =
        thread::spawn(move || letters.iter().for_each(|letter| letter.send(vec![1.0, 2.0])));
    drop((gone, lost));
    assert_eq!(values(&z), [4.0, 6.0]);
    sender.join().unwrap();
    drop((x, y, z));
    nothing_stays(device);
}

/// Polls run small steps while workers look at the same ones, and operands lose their handles.
pub fn inline_polls_beside_workers() {
    let device = device(|o| o);
    let x = device.arange(0.0f32, 2.0, 1.0);
    let y = &x + 1.0;
    let (a, b) = (&y * 2.0, &y - 1.0);
    let other = thread::spawn(move || values(&a));
    drop((x, y));
    assert_eq!(values(&b), [0.0, 1.0]);
    assert_eq!(other.join().unwrap(), [2.0, 4.0]);
    drop(b);
    nothing_stays(device);
}

/// Steps of the task table, with what follows them, beside drops.
pub fn steps_beside_drops() {
    let device = device(|o| o.inline(false));
    let x = large(&device.arange(0.0f32, 2.0, 1.0));
    let y = large(&x);
    let (a, b) = (&y + 1.0, large(&x));
    let dropper = thread::spawn(move || drop((y, b)));
    drop(x);
    assert_eq!(values(&a), [1.0, 2.0]);
    drop(a);
    dropper.join().unwrap();
    nothing_stays(device);
}

/// A value is worked with when the device's last handle is gone: the threads that start for it end
/// as well.
pub fn an_op_after_the_last_handle() {
    let device = device(|o| o);
    let x = device.arange(0.0f32, 2.0, 1.0);
    let dropper = thread::spawn(move || drop(device));
    assert_eq!(values(&large(&(&x + 1.0))), [1.0, 2.0]);
    dropper.join().unwrap();
    assert_eq!(values(&large(&x)), [0.0, 1.0]);
}

/// Every await ends, with a value or the error that says why not.
pub fn a_shutdown_in_the_middle() {
    let device = device(|o| o);
    let x = device.arange(0.0f32, 2.0, 1.0);
    let other = {
        let x = x.clone();
        thread::spawn(move || {
            let y = &x + 1.0;
            let z = large(&y);
            let first = block_on(y.to_vec::<f32>());
            let second = block_on(z.to_vec::<f32>());
            [first, second].map(|read| read.is_ok())
        })
    };
    block_on(device.shutdown()).unwrap();
    other.join().unwrap();
    drop(x);
    soon(&device);
}

/// What comes in beside a shutdown, and waits for what never comes, fails.
pub fn a_shutdown_beside_a_source() {
    let device = device(|o| o.inline(false));
    // What is enqueued after this it does not wait for.
    let shutdown = device.shutdown();
    let x = device.from_future([2], Letter::default());
    let y = &x + 1.0;
    let other = thread::spawn(move || block_on(shutdown).unwrap());
    assert!(block_on(y).is_err());
    other.join().unwrap();
    drop(x);
    soon(&device);
}
