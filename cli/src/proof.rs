//! The proof that chunks go back behind their filters, for those of whom it was put off, beside everything else.
//!
//! Deflating takes a good part of a save's time, and no other part waits for it but the commit. So threads of the lowest priority
//! do it, for which the system finds time whenever a core has nothing else to do. Where none has, on a node that computes, they come to
//! nothing: then whoever commits does all of it, and waits for none of them.

use mcr_anc::budget::Lease;
use mcr_cnc::capture::Image;
use mcrengine::ids::FilePath;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// A chunk whose stored bytes were taken to come back, since all before did, and do not.
#[derive(Debug, thiserror::Error)]
#[error("{path}: a chunk does not come back from its raw bytes, though all before it did")]
pub struct NotProven {
    path: FilePath,
}

/// The bytes of a file, and the right to hold them.
pub struct Leased {
    pub path: FilePath,
    pub image: Arc<Image>,
    #[expect(dead_code, reason = "it is only held")]
    pub leases: Vec<Lease>,
}

impl Leased {
    /// Bytes so few that nobody asks for leave to hold them.
    pub fn small(path: FilePath, image: Arc<Image>) -> Arc<Self> {
        Arc::new(Self { path, image, leases: Vec::new() })
    }
}

/// Threads for which the system finds time when it has nothing else to do. They end with the process.
pub struct Provers {
    threads: usize,
    queue: Arc<Queue>,
    started: OnceLock<()>,
}

/// As many as there are groups under way.
#[derive(Default)]
struct Queue {
    tasks: Mutex<VecDeque<Arc<Task>>>,
    is_more: Condvar,
}

/// What has still to be shown of a group's files. Dropped, it is given up.
pub struct Proof {
    task: Arc<Task>,
    queue: Arc<Queue>,
}

struct Task {
    files: Vec<Arc<Leased>>,
    /// File, and what its image calls the chunk.
    chunks: Vec<(usize, (usize, usize))>,
    /// The next that nobody has begun.
    next: AtomicUsize,
    /// Of each, whether it was shown.
    is_shown: Vec<AtomicBool>,
    /// One that does not come back.
    wrong: OnceLock<usize>,
    /// There is such a one, or nobody wants to know any more.
    is_over: AtomicBool,
}

/// The lowest priority there is.
const NICE: i32 = 19;

impl Provers {
    /// At most so many threads, once there is something to do.
    pub fn new(threads: usize) -> Self {
        Self { threads, queue: Arc::default(), started: OnceLock::new() }
    }

    /// Begins with what these files leave to be shown.
    pub fn begin(&self, files: Vec<Arc<Leased>>) -> Proof {
        let of = |(n, file): (usize, &Arc<Leased>)| file.image.unproven().into_iter().map(move |chunk| (n, chunk));
        let chunks: Vec<_> = files.iter().enumerate().flat_map(of).collect();
        let is_shown = chunks.iter().map(|_| AtomicBool::new(false)).collect();
        let task =
            Arc::new(Task { files, chunks, next: 0.into(), is_shown, wrong: OnceLock::new(), is_over: false.into() });
        if !task.chunks.is_empty() {
            self.queue.lock().push_back(Arc::clone(&task));
            self.queue.is_more.notify_all();
            self.started.get_or_init(|| {
                for _ in 0..self.threads {
                    let queue = Arc::clone(&self.queue);
                    // Where no thread can be had, whoever commits does all of it.
                    let _ = std::thread::Builder::new().name("prover".into()).spawn(move || queue.work());
                }
            });
        }
        Proof { task, queue: Arc::clone(&self.queue) }
    }
}

impl Queue {
    fn remove(&self, task: &Arc<Task>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, task));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Task>>> {
        // Nothing under this lock panics.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        // On Linux it is the thread's. At the usual one it would be in the way of everything else.
        if rustix::process::nice(NICE).is_err() {
            return;
        }
        loop {
            let waited = self.is_more.wait_while(self.lock(), |tasks| tasks.is_empty());
            let first = waited.unwrap_or_else(PoisonError::into_inner).front().map(Arc::clone);
            if let Some(task) = first {
                task.work();
                self.remove(&task);
            }
        }
    }
}

impl Proof {
    /// Whether all of it was shown; what was not is shown now, even where one of the threads has begun with it.
    pub fn finish(&self) -> Result<(), NotProven> {
        let task = &self.task;
        task.work();
        for nth in 0..task.chunks.len() {
            if task.wrong.get().is_some() || !task.is_shown(nth) && !task.show(nth) {
                break;
            }
        }
        match task.wrong.get() {
            Some(&nth) => Err(NotProven { path: task.files[task.chunks[nth].0].path.clone() }),
            None => Ok(()),
        }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        self.task.is_over.store(true, Ordering::Relaxed);
        self.queue.remove(&self.task); // with the bytes that it holds, but for what a thread is just at
    }
}

impl Task {
    /// Does what nobody has begun.
    fn work(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let nth = self.next.fetch_add(1, Ordering::Relaxed);
            if nth >= self.chunks.len() || !self.show(nth) {
                return;
            }
        }
    }

    fn show(&self, nth: usize) -> bool {
        let (file, chunk) = self.chunks[nth];
        let is_shown = self.files[file].image.proves(chunk);
        self.is_shown[nth].store(is_shown, Ordering::Release);
        if !is_shown {
            self.wrong.get_or_init(|| nth);
            self.is_over.store(true, Ordering::Relaxed);
        }
        is_shown
    }

    fn is_shown(&self, nth: usize) -> bool {
        self.is_shown[nth].load(Ordering::Acquire)
    }
}
