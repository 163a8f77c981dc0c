//! A thread that compiles while the device goes on with kernels that it has.
//!
//! Made when the first job comes, and gone with the store that made it. Knows no device: it turns
//! text into images, and the device's thread picks them up when it next looks.

use super::cache::{Disk, Key};
use super::compile::{Target, compile};
use crate::host::runner::lower_priority;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// One translation unit.
pub(crate) struct Job {
    pub name: String,
    pub text: String,
    pub target: Target,
    pub key: Key,
}

impl Job {
    /// The image: from the disk, or compiled and put there.
    pub fn run(&self, disk: &Disk, options: &[&str]) -> Result<Vec<u8>, String> {
        if let Some(image) = disk.get(self.key) {
            return Ok(image);
        }
        let image = compile(&self.name, &self.text, options, self.target)?;
        disk.put(self.key, &image);
        Ok(image)
    }
}

type Done<T> = (T, Result<Vec<u8>, String>);

/// The thread, and what it has made; a job goes by a ticket of the caller's.
pub(crate) struct Background<T> {
    jobs: Option<Sender<(T, Job)>>,
    done: Arc<Mutex<Vec<Done<T>>>>,
    disk: Arc<Disk>,
    options: &'static [&'static str],
}

impl<T: Send + 'static> Background<T> {
    pub fn new(disk: Arc<Disk>, options: &'static [&'static str]) -> Background<T> {
        Background { jobs: None, done: Arc::default(), disk, options }
    }

    /// Queues a job; false where there can be no thread.
    pub fn start(&mut self, ticket: T, job: Job) -> bool {
        if self.jobs.is_none() {
            self.jobs = self.spawn();
        }
        self.jobs.as_ref().is_some_and(|jobs| jobs.send((ticket, job)).is_ok())
    }

    fn spawn(&self) -> Option<Sender<(T, Job)>> {
        let (sender, jobs) = channel::<(T, Job)>();
        let (done, disk, options) = (self.done.clone(), self.disk.clone(), self.options);
        let work = move || {
            // Nobody waits for it.
            lower_priority(10);
            while let Ok((ticket, job)) = jobs.recv() {
                let image = job.run(&disk, options);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((ticket, image));
            }
        };
        thread::Builder::new().name("futensor-compile".into()).spawn(work).ok().map(|_| sender)
    }

    /// What was finished since the last look.
    pub fn finished(&self) -> Vec<Done<T>> {
        match self.jobs {
            None => Vec::new(),
            Some(_) => std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}
