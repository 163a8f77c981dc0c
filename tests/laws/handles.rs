//! Law 10: handles are plain values, under any executor.

use crate::support::{ALL, Counter, Gate, Kind, block_on};
use crate::{Laws, promises};
use futensor::barrier::Permit;
use futensor::{Device, Error, Generator, Tensor, TensorFuture};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

pub fn add(laws: &mut Laws) {
    promises!(laws, 10, &[Kind::Cpu];
        handles_and_futures_are_send_sync_unpin_and_static);
    promises!(laws, 10, ALL;
        one_value_is_awaited_by_many_tasks_and_computed_once
        a_complete_value_can_be_awaited_again_and_again
        the_same_program_runs_under_every_executor
        timeouts_and_selects_give_up_only_the_wait
        a_handle_may_be_made_awaited_and_dropped_on_different_threads
        a_source_may_be_woken_from_any_thread);
}

fn handles_and_futures_are_send_sync_unpin_and_static(_: Kind) {
    fn handle<T: Clone + Send + Sync + Unpin + 'static>() {}
    fn sent<T: Send + 'static>(_: &T) {}
    handle::<TensorFuture>();
    handle::<Tensor>();
    handle::<Device>();
    handle::<Error>();
    handle::<Generator>();
    fn future<T: Future + Send + Unpin + 'static>() {}
    future::<TensorFuture>();
    future::<futensor::barrier::Wait>();
    future::<futensor::barrier::WaitAll>();
    future::<futensor::barrier::WaitEverything>();
    future::<futensor::barrier::Ready>();
    future::<futensor::barrier::Admit>();
    future::<futensor::barrier::TrimWait>();
    future::<futensor::barrier::Shutdown>();
    future::<futensor::read::Shown>();
    future::<futensor::read::NonZero>();
    future::<futensor::read::ToVec<f32>>();
    future::<futensor::read::Item<i64>>();
    fn lent<T: Send + 'static>() {}
    lent::<Permit>();
    // So is a task made of them.
    let device = Device::cpu();
    sent(&async move {
        let x = device.ones([2]);
        let y = (&x + 1.0).await?;
        device.waitall().await?;
        (x * y).item::<f32>().await
    });
}

fn one_value_is_awaited_by_many_tasks_and_computed_once(kind: Kind) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let device = kind.device();
    let (gate, counter) = (Gate::new(), Counter::new());
    let x = counter.op(&gate.op(&device.arange(0.0, 10.0, 1.0)));
    let ended = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let (x, ended) = (x.clone(), ended.clone());
            runtime.spawn(async move {
                let seen = match i % 4 {
                    0 => x.await.unwrap().to_vec::<f32>().await.unwrap(),
                    1 => (&x).await.unwrap().to_vec::<f32>().await.unwrap(),
                    2 => x.to_vec::<f32>().await.unwrap(),
                    _ => {
                        x.wait_to_read().await.unwrap();
                        x.to_vec::<f32>().await.unwrap()
                    }
                };
                assert!(seen.into_iter().eq((0..10).map(|i| i as f32)));
                ended.fetch_add(1, SeqCst);
            })
        })
        .collect();
    gate.wait_entered(1);
    assert_eq!(ended.load(SeqCst), 0);
    gate.open();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!((ended.load(SeqCst), counter.runs()), (200, 1));
}

fn a_complete_value_can_be_awaited_again_and_again(kind: Kind) {
    block_on(async {
        let device = kind.device();
        let mut x = device.ones([3]) + 1.0;
        for _ in 0..300 {
            // By the same handle, too.
            assert_eq!((&mut x).await.unwrap().to_vec::<f32>().await.unwrap(), [2.0; 3]);
            assert_eq!((&x).await.unwrap().dims(), [3]);
        }
    });
}

async fn program(device: Device) -> futensor::Result<f32> {
    let mut kept = device.zeros([32, 32]);
    for i in 0..50 {
        let x = device.ones([32, 32]) * i;
        let y = (&x).await?;
        kept = kept + y.matmul(device.eye(32));
        if i % 10 == 0 {
            device.ready().await;
            let _permit = device.admit().await;
            kept.wait_to_read().await?;
        }
    }
    device.waitall().await?;
    kept.mean_all().item::<f32>().await
}

fn the_same_program_runs_under_every_executor(kind: Kind) {
    let device = kind.device();
    let want = (0..50).sum::<i32>() as f32;
    assert_eq!(block_on(program(device.clone())).unwrap(), want);
    let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(one.block_on(program(device.clone())).unwrap(), want);
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let tasks: Vec<_> = (0..8).map(|_| many.spawn(program(device.clone()))).collect();
    for task in tasks {
        assert_eq!(many.block_on(task).unwrap().unwrap(), want);
    }
    // What smol is made of.
    let executor = async_executor::Executor::new();
    let tasks: Vec<_> = (0..8).map(|_| executor.spawn(program(device.clone()))).collect();
    block_on(executor.run(async {
        for task in tasks {
            assert_eq!(task.await.unwrap(), want);
        }
    }));
    let mut pool = futures::executor::LocalPool::new();
    assert_eq!(pool.run_until(program(device)).unwrap(), want);
}

fn timeouts_and_selects_give_up_only_the_wait(kind: Kind) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let device = kind.device();
        let (gate, counter) = (Gate::new(), Counter::new());
        let x = counter.op(&gate.op(&device.ones([2])));
        gate.wait_entered(1);
        assert!(tokio::time::timeout(Duration::from_millis(2), &x).await.is_err());
        assert!(tokio::time::timeout(Duration::from_millis(2), device.waitall()).await.is_err());
        let quick = std::future::ready(());
        tokio::select! {
            biased;
            _ = &x => panic!("the gate is shut"),
            _ = x.to_vec::<f32>() => panic!("the gate is shut"),
            () = quick => {}
        }
        gate.open();
        assert_eq!(x.to_vec::<f32>().await.unwrap(), [1.0; 2]);
        assert_eq!(counter.runs(), 1);
    });
}

fn a_handle_may_be_made_awaited_and_dropped_on_different_threads(kind: Kind) {
    for i in 0..50 {
        let made = std::thread::spawn(move || kind.device().ones([4]) + i).join().unwrap();
        let read = std::thread::spawn(move || {
            assert_eq!(block_on(made.to_vec::<f32>()).unwrap(), [(i + 1) as f32; 4]);
            made
        });
        let made = read.join().unwrap();
        std::thread::spawn(move || drop(made)).join().unwrap();
    }
}

fn a_source_may_be_woken_from_any_thread(kind: Kind) {
    let device = kind.device();
    for i in 0..100 {
        let (send, receive) = futures::channel::oneshot::channel::<Vec<f32>>();
        let x = device.from_future([3], receive);
        let sum = (&x * 2.0).sum_all().item::<f32>();
        let sender = std::thread::spawn(move || send.send(vec![i as f32; 3]));
        assert_eq!(block_on(sum).unwrap(), 6.0 * i as f32);
        sender.join().unwrap().unwrap();
    }
    // One whose sender goes away fails.
    let (send, receive) = futures::channel::oneshot::channel::<Vec<f32>>();
    let x = device.from_future([3], receive);
    drop(send);
    assert!(block_on(x).unwrap_err().is_source());
}
