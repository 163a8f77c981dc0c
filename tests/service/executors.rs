//! The same handles under every executor and in every style of waiting.

use crate::support::{Gate, Kind};
use crate::trials::{Case, cases, on_workers};
use futensor::serve::completed;
use futensor::{Device, TensorFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use std::time::Duration;

pub fn all() -> Vec<Case> {
    cases!["executors::";
        what_tasks_hold_can_go_to_other_threads
        a_plain_thread_waits_with_block_on
        smol_runs_tasks_on_two_threads
        a_local_executor_runs_tasks_that_are_not_send
        the_pool_of_the_futures_crate_runs_tasks
        several_runtimes_share_a_device_and_its_values
        handles_go_into_spawned_tasks_and_come_back
        results_come_in_the_order_of_their_completion
        thousands_of_results_give_way_and_all_come
        ; async
        timeout_gives_up_a_wait_that_can_be_taken_up_again
        select_takes_what_is_there_and_leaves_the_rest_to_come
        join_waits_for_several_at_once
        futures_unordered_gives_each_once
        buffered_keeps_the_order
    ]
}

fn what_tasks_hold_can_go_to_other_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<futensor::barrier::Barriers>();
    check::<futensor::serve::Completed>();
    check::<futensor::barrier::Scoped<TensorFuture>>();
    check::<futensor::recording::Recording>();
    check::<futensor::serve::Answer>();
    check::<futensor::serve::Batcher<Box<dyn Fn() + Send>>>();
}

fn work(device: &Device, i: usize) -> TensorFuture {
    (device.full([64, 64], i as f32).matmul(device.eye(64)) + 1.0).sum_all()
}

fn want(i: usize) -> f32 {
    4096.0 * (i as f32 + 1.0)
}

async fn requests(device: &Device, n: usize) {
    for i in 0..n {
        assert_eq!(work(device, i).item::<f32>().await.unwrap(), want(i));
    }
}

fn a_plain_thread_waits_with_block_on() {
    let device = Kind::Cpu.device();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let device = device.clone();
            std::thread::spawn(move || futensor::block_on(requests(&device, 30)))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

fn smol_runs_tasks_on_two_threads() {
    let device = Kind::Cpu.device();
    let executor = async_executor::Executor::new();
    let (signal, shutdown) = futures::channel::oneshot::channel::<()>();
    let shutdown = futures::FutureExt::shared(shutdown);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (executor, shutdown) = (&executor, shutdown.clone());
            scope.spawn(move || futures::executor::block_on(executor.run(shutdown)));
        }
        let tasks: Vec<_> = (0..8).map(|_| executor.spawn(requests(&device, 20))).collect();
        futures::executor::block_on(futures::future::join_all(tasks));
        signal.send(()).unwrap();
    });
}

fn a_local_executor_runs_tasks_that_are_not_send() {
    let device = Kind::Cpu.device();
    let shared = std::rc::Rc::new(std::cell::Cell::new(0.0));
    let executor = async_executor::LocalExecutor::new();
    let task = executor.spawn(async {
        for i in 0..10 {
            shared.set(shared.get() + work(&device, i).item::<f32>().await.unwrap());
        }
    });
    futures::executor::block_on(executor.run(task));
    assert_eq!(shared.get(), (0..10).map(want).sum::<f32>());
}

fn the_pool_of_the_futures_crate_runs_tasks() {
    use futures::task::LocalSpawnExt;
    let device = Kind::Cpu.device();
    let mut pool = futures::executor::LocalPool::new();
    for _ in 0..4 {
        let device = device.clone();
        pool.spawner().spawn_local(async move { requests(&device, 10).await }).unwrap();
    }
    pool.run();
}

fn several_runtimes_share_a_device_and_its_values() {
    let device = Kind::Cpu.device();
    let gate = Gate::new();
    let shared = gate.op(&device.ones([2]));
    let runtimes: Vec<_> = (0..3)
        .map(|k| {
            let (device, shared) = (device.clone(), shared.clone());
            std::thread::spawn(move || {
                let runtime = match k {
                    0 => tokio::runtime::Builder::new_multi_thread()
                        .worker_threads(2)
                        .build()
                        .unwrap(),
                    _ => tokio::runtime::Builder::new_current_thread().build().unwrap(),
                };
                let waits = runtime.spawn(async move { shared.to_vec::<f32>().await.unwrap() });
                runtime.block_on(requests(&device, 20));
                runtime.block_on(waits).unwrap()
            })
        })
        .collect();
    // One more goes away in the middle of its waits.
    let gone = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let waiting = shared.clone();
    gone.spawn(async move { waiting.await.map(drop) });
    gone.shutdown_background();
    gate.wait_entered(1);
    gate.open();
    for runtime in runtimes {
        assert_eq!(runtime.join().unwrap(), [1.0, 1.0]);
    }
}

async fn timeout_gives_up_a_wait_that_can_be_taken_up_again() {
    let device = Kind::Cpu.device();
    let gate = Gate::new();
    let x = gate.op(&device.ones([2]));
    assert!(tokio::time::timeout(Duration::from_millis(1), &x).await.is_err());
    gate.open();
    assert!(tokio::time::timeout(Duration::from_secs(50), &x).await.unwrap().is_ok());
}

async fn select_takes_what_is_there_and_leaves_the_rest_to_come() {
    let device = Kind::Cpu.device();
    let gate = Gate::new();
    let slow = gate.op(&device.ones([2]));
    gate.wait_entered(1);
    let fast = device.ones([3]) * 2.0;
    let mut pending = std::future::IntoFuture::into_future(&slow);
    loop {
        tokio::select! {
            // In order, so that this test is of the loop and not of luck.
            biased;
            result = &mut pending => {
                assert_eq!(result.unwrap().dims(), [2]);
                break;
            }
            read = fast.to_vec::<f32>(), if !fast.is_ready() => assert_eq!(read.unwrap(), [2.0; 3]),
            () = std::future::ready(()), if fast.is_ready() => {
                gate.open();
                pending = std::future::IntoFuture::into_future(&slow);
                pending.await.unwrap();
                break;
            }
        }
    }
}

async fn join_waits_for_several_at_once() {
    let device = Kind::Cpu.device();
    let (a, b, c) = tokio::join!(
        work(&device, 1).item::<f32>(),
        work(&device, 2).item::<f32>(),
        futures::future::try_join(work(&device, 3).item::<f32>(), work(&device, 4).item::<f32>())
    );
    assert_eq!((a.unwrap(), b.unwrap(), c.unwrap()), (want(1), want(2), (want(3), want(4))));
}

async fn futures_unordered_gives_each_once() {
    let device = Kind::Cpu.device();
    let mut set: FuturesUnordered<_> = (0..50)
        .map(|i| {
            let read = work(&device, i).item::<f32>();
            async move { (i, read.await.unwrap()) }
        })
        .collect();
    let mut seen = vec![false; 50];
    while let Some((i, value)) = set.next().await {
        assert_eq!(value, want(i));
        assert!(!std::mem::replace(&mut seen[i], true));
    }
    assert!(seen.into_iter().all(|s| s));
}

async fn buffered_keeps_the_order() {
    let device = Kind::Cpu.device();
    let values: Vec<f32> = futures::stream::iter(0..40)
        .map(|i| work(&device, i).item::<f32>())
        .buffered(4)
        .map(|read| read.unwrap())
        .collect()
        .await;
    assert_eq!(values, (0..40).map(want).collect::<Vec<_>>());
}

fn handles_go_into_spawned_tasks_and_come_back() {
    on_workers(2, async {
        let device = Kind::Cpu.device();
        let tasks: Vec<_> = (0..16)
            .map(|i| {
                let x = work(&device, i);
                tokio::spawn(async move { (&x).await.unwrap() * 2.0 })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().item::<f32>().await.unwrap(), 2.0 * want(i));
        }
    });
}

fn results_come_in_the_order_of_their_completion() {
    let device = Kind::Cpu.device_with(|o| o.threads(3));
    let gates = [Gate::new(), Gate::new(), Gate::new()];
    let values: Vec<TensorFuture> = gates.iter().map(|g| g.op(&device.ones([2]))).collect();
    gates.iter().for_each(|g| g.wait_entered(1));
    futures::executor::block_on(async {
        let mut results = completed(values);
        assert!(futures::poll!(results.next()).is_pending());
        for k in [2, 0, 1] {
            gates[k].open();
            let (number, result) = results.next().await.unwrap();
            assert_eq!(
                (number, result.unwrap().to_vec::<f32>().await.unwrap()),
                (k, vec![1.0, 1.0])
            );
        }
        assert!(results.next().await.is_none());
    });
}

fn thousands_of_results_give_way_and_all_come() {
    let device = Kind::Cpu.device();
    let wrong = device.ones([2]).matmul(device.ones([3]));
    let values = (0..3000).map(|i| device.ones([2]) + i as f32).chain([wrong]);
    let results: Vec<_> = futures::executor::block_on(completed(values).collect());
    assert_eq!(results.len(), 3001);
    for (number, result) in results {
        assert_eq!(result.is_err(), number == 3000);
    }
}
