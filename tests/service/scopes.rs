//! `deny_barriers` and its siblings: what is denied, where it says so, and that the scope is the
//! task's.

use crate::support::{Gate, Kind};
use crate::trials::{Case, cases};
use futensor::Device;
use futensor::barrier::{allow_barriers, deny_barriers, tell_barriers};
use futures::executor::block_on;
use futures::poll;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

pub fn all() -> Vec<Case> {
    cases!["scopes::";
        every_kind_of_await_is_denied_by_its_own_line
        a_value_that_is_there_is_denied_as_well
        queueing_and_backpressure_are_no_barriers
        the_scope_follows_the_task_across_threads_and_leaks_to_none
        two_tasks_on_one_thread_have_their_own_scopes
        a_poll_that_panics_takes_its_scope_with_it
        the_innermost_scope_counts
        each_barrier_is_told_once_however_often_it_is_polled
        an_await_that_is_denied_leaves_the_value_to_others
        an_await_by_another_librarys_code_is_named_by_its_op
        ; async
        what_is_spawned_is_another_task
    ]
}

/// The error of a denied await, and the line that it names; both that of the caller.
fn check(error: futensor::Error, what: &str, line: u32) {
    assert!(error.is_barrier(), "{error}");
    assert_eq!((error.op(), error.location().line()), (what, line), "{error}");
    assert!(error.location().file().ends_with("scopes.rs"), "{error}");
}

fn every_kind_of_await_is_denied_by_its_own_line() {
    let device = Device::cpu_with(Default::default());
    block_on(deny_barriers(async {
        let x = device.ones([40, 50]) + 1.0;
        check((&x).await.map(drop).unwrap_err(), "await", line!());
        check(x.wait_to_read().await.unwrap_err(), "wait_to_read", line!());
        check(x.to_vec::<f32>().await.map(drop).unwrap_err(), "to_vec", line!());
        check(x.i((0, 0..2)).to_vec::<f32>().await.map(drop).unwrap_err(), "to_vec", line!());
        check(x.sum_all().item::<f32>().await.map(drop).unwrap_err(), "item", line!());
        check(x.display().await.map(drop).unwrap_err(), "display", line!());
        check(x.nonzero().await.map(drop).unwrap_err(), "nonzero", line!());
        check(device.waitall().await.unwrap_err(), "waitall", line!());
        check(futensor::waitall().await.unwrap_err(), "waitall", line!());
        check(x.await.map(drop).unwrap_err(), "await", line!());
    }));
}

fn a_value_that_is_there_is_denied_as_well() {
    let device = Device::cpu_with(Default::default());
    let x = block_on(device.ones([2])).unwrap();
    block_on(device.waitall()).unwrap();
    block_on(deny_barriers(async {
        assert!((&x).await.unwrap_err().is_barrier());
        assert!(device.waitall().await.unwrap_err().is_barrier());
    }));
    // And the denial was the await's, not the value's.
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [1.0, 1.0]);
}

fn queueing_and_backpressure_are_no_barriers() {
    let device = Device::cpu_with(Default::default());
    let x = block_on(deny_barriers(async {
        let mut x = device.ones([10]);
        for i in 0..10 {
            device.ready().await;
            let _permit = device.admit().await;
            x = x + i as f32;
        }
        x
    }));
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [46.0; 10]);
}

fn the_scope_follows_the_task_across_threads_and_leaks_to_none() {
    let device = Kind::Cpu.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    let y = x.clone();
    let (sender, receiver) = futures::channel::oneshot::channel::<()>();
    let task = async move {
        receiver.await.unwrap();
        y.await.map(drop).unwrap_err()
    };
    let mut task = Box::pin(deny_barriers(task));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // This thread has polled it, and may await.
    assert!(block_on(device.ones([3]).to_vec::<f32>()).is_ok());
    sender.send(()).unwrap();
    let elsewhere = std::thread::spawn(move || {
        let error = block_on(task);
        // That thread is free again as well.
        block_on(Device::cpu().ones([3])).unwrap();
        error
    });
    assert!(elsewhere.join().unwrap().is_barrier());
    gate.open();
    block_on(x).unwrap();
}

fn two_tasks_on_one_thread_have_their_own_scopes() {
    let device = Device::cpu_with(Default::default());
    block_on(async {
        let denied = deny_barriers(async {
            let mut denied = 0;
            for _ in 0..20 {
                futures::pending!();
                denied += device.ones([2]).await.is_err() as usize;
            }
            denied
        });
        let free = async {
            let mut fine = 0;
            for i in 0..20 {
                fine += (device.ones([2]) + i).to_vec::<f32>().await.is_ok() as usize;
                futures::pending!();
            }
            fine
        };
        // Polled in turns by hand: `pending!` wakes nobody.
        let (mut denied, mut free) = (pin!(denied), pin!(free));
        let (mut of_denied, mut of_free) = (None, None);
        while of_denied.is_none() || of_free.is_none() {
            if of_denied.is_none() {
                of_denied = match poll!(denied.as_mut()) {
                    std::task::Poll::Ready(n) => Some(n),
                    _ => None,
                };
            }
            if of_free.is_none() {
                of_free = match poll!(free.as_mut()) {
                    std::task::Poll::Ready(n) => Some(n),
                    _ => None,
                };
            }
        }
        assert_eq!((of_denied, of_free), (Some(20), Some(20)));
    });
}

fn a_poll_that_panics_takes_its_scope_with_it() {
    let device = Device::cpu_with(Default::default());
    let caught =
        std::panic::catch_unwind(|| block_on(deny_barriers(async { panic!("on purpose") })));
    assert!(caught.is_err());
    block_on(device.ones([2])).unwrap();
}

fn the_innermost_scope_counts() {
    let device = Device::cpu_with(Default::default());
    block_on(deny_barriers(async {
        let x = device.ones([2]);
        assert!(allow_barriers(&x).await.is_ok());
        assert!((&x).await.is_err());
        allow_barriers(async {
            assert!((&x).await.is_ok());
            assert!(deny_barriers(&x).await.is_err());
            assert!((&x).await.is_ok());
        })
        .await;
    }));
}

async fn what_is_spawned_is_another_task() {
    let device = Device::cpu_with(Default::default());
    let spawned = deny_barriers(async {
        let x = device.ones([2]);
        tokio::spawn(async move { x.to_vec::<f32>().await })
    });
    assert_eq!(spawned.await.await.unwrap().unwrap(), [1.0, 1.0]);
}

fn each_barrier_is_told_once_however_often_it_is_polled() {
    let device = Kind::Cpu.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    let told = Arc::new(Mutex::new(Vec::new()));
    let own = told.clone();
    let line = line!() + 2;
    let task = async {
        x.to_vec::<f32>().await.unwrap();
        device.waitall().await
    };
    let mut task = Box::pin(tell_barriers(task, move |barrier| own.lock().unwrap().push(barrier)));
    for _ in 0..3 {
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    gate.open();
    block_on(task).unwrap();
    let told: Vec<_> = told.lock().unwrap().iter().map(|b| (b.what, b.site.line())).collect();
    assert_eq!(told, [("to_vec", line), ("waitall", line + 1)]);
}

fn an_await_that_is_denied_leaves_the_value_to_others() {
    let device = Kind::Cpu.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    let other = x.clone();
    assert!(block_on(deny_barriers(x)).is_err());
    gate.open();
    assert_eq!(block_on(other.to_vec::<f32>()).unwrap(), [1.0, 1.0]);
}

fn an_await_by_another_librarys_code_is_named_by_its_op() {
    let device = Device::cpu_with(Default::default());
    let line = line!() + 1;
    let x = device.ones([2]) + 1.0;
    let joined = block_on(deny_barriers(futures::future::join_all([x.clone()])));
    check(joined.into_iter().next().unwrap().map(drop).unwrap_err(), "await", line);
    let boxed: std::pin::Pin<Box<dyn Future<Output = futensor::Result<futensor::Tensor>>>> =
        Box::pin(x.clone());
    check(block_on(deny_barriers(boxed)).map(drop).unwrap_err(), "await", line);
    let raced = deny_barriers(async {
        tokio::select! { result = x => (line!(), result.map(drop).unwrap_err()) }
    });
    let (line, error) = block_on(raced);
    check(error, "await", line);
}
