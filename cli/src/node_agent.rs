//! The agent of a node with its control socket. If the layout was guessed, the guess is repeated periodically.

use crate::names::{INTERVAL, Misfit, Names, leave_out_copies, look};
use crate::overlooked::{of_the_application, only_written, was_written};
use mcr_cnc::agent::{Agent, DrainOrder, Drained, FlushRequest, Look, Processes};
use mcr_cnc::companions::leave_out_pointers;
use mcr_cnc::config::{CncConfig, LayoutChoice};
use mcr_cnc::control::{Control, Reached, socket_of};
use mcr_cnc::layout::{Layout, Listing, Unplaced, list};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum pause between two looks at the file names, as a multiple of the duration of the last look.
const LOOKS_SHARE: u32 = 20;

/// The pause before the first look. The layout was guessed from the first files, and other files follow soon.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// An agent and its control socket.
pub struct NodeAgent {
    config: CncConfig,
    layout: Layout,
    store: Option<PathBuf>,
    /// `None` between the end of an agent and the start of the next agent with another layout.
    running: Option<Running>,
    /// The next message about files that belong to no checkpoint is logged if there are more such files than this
    /// number.
    told: usize,
}

struct Running {
    agent: Agent,
    /// The control socket, which is closed when this value is dropped.
    _control: Option<Control>,
}

impl NodeAgent {
    /// `store`: the store, if this process knows it. A store below the watched directory has no files of the
    /// application.
    pub fn start(config: CncConfig, layout: Layout, store: Option<PathBuf>) -> anyhow::Result<Self> {
        let running = Some(Running::start(&config, &layout, store.clone())?);
        Ok(Self { config, layout, store, running, told: 0 })
    }

    /// Waits until the agent has seen the files that exist, for a limited time.
    pub async fn watches(&mut self) {
        if let Some(running) = &mut self.running {
            running.agent.watches().await;
        }
    }

    /// Asks the agent to commit all files that were written before this call. Does not wait for the answer.
    pub fn flush(&self, request: FlushRequest) {
        if let Some(running) = &self.running {
            let _ = running.agent.flushes().try_send(request); // a full queue means that a flush is running
        }
    }

    /// Looks periodically at the names of the files. If the names show another layout, starts the agent again with
    /// this layout. Returns only if the agent cannot continue.
    pub async fn look_at_names(&mut self) -> anyhow::Error {
        let (mut took, mut pause) = (Duration::ZERO, FIRST_PAUSE);
        loop {
            tokio::time::sleep(pause.max(took * LOOKS_SHARE)).await;
            pause = INTERVAL.min(pause * 2);
            let began = Instant::now();
            let looked = self.look_once().await;
            took = began.elapsed();
            match looked {
                Ok(misfit) => self.tell(misfit),
                Err(error) => return error,
            }
        }
    }

    /// Logs files that do not fit the layout.
    fn tell(&mut self, Misfit { left, asks }: Misfit) {
        let is_of_all = |left: &Unplaced| left.are_many || left.restart.is_some() || asks.is_some();
        match left {
            Some(left) if is_of_all(&left) && self.told < left.files => {
                self.told = 2 * left.files; // the next message comes when the number has doubled
                tracing::warn!(
                    files = left.files, of = left.of, first = %left.restart.as_ref().unwrap_or(&left.first), why = asks,
                    "files belong to no checkpoint of the layout and are not saved; name the layout with \
                     --layout, or layout in the configuration"
                );
            }
            None if self.told == 0 => {
                if let Some(why) = asks {
                    self.told = 1;
                    tracing::warn!(
                        why,
                        "the names of later files do not fit the layout that was guessed from the first files; the \
                         saved checkpoints may be only parts of checkpoints; give --layout"
                    );
                }
            }
            _ => {}
        }
    }

    /// Looks at the names of the files. Returns the files that do not fit the layout.
    async fn look_once(&mut self) -> anyhow::Result<Misfit> {
        if !matches!(self.config.layout, LayoutChoice::Guess) {
            return Ok(Misfit::default());
        }
        let (config, layout) = (self.config.clone(), self.layout.clone());
        match tokio::task::spawn_blocking(move || look(&config, &layout)).await? {
            Names::Fit => Ok(Misfit::default()),
            Names::Misfit(misfit) => Ok(misfit),
            Names::Other(layout) => {
                tracing::warn!("files have names of another layout; the agent continues with this layout");
                self.layout = layout;
                if let Some(old) = self.running.take() {
                    old.agent.abandon().await;
                }
                self.running = Some(Running::start(&self.config, &self.layout, self.store.clone())?);
                Ok(Misfit::default())
            }
        }
    }

    /// The layout of the running agent.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Ends the agent. Also returns files that do not fit a guessed layout.
    pub async fn drain(mut self, until: Instant, processes: Processes) -> (Drained, Misfit) {
        self.config.has_ended_well = processes == Processes::EndedWell; // for an agent with another layout
        let looked = self.look_once().await;
        let running = match self.running {
            Some(running) => Ok(running),
            // The change of the layout was interrupted.
            None => Running::start(&self.config, &self.layout, self.store.clone()),
        };
        match (looked, running) {
            (Ok(misfit), Ok(running)) => {
                (running.agent.drain(DrainOrder { until: until.into(), processes }).await, misfit)
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(error = format!("{error:#}"), "the agent could not continue with another layout");
                (Drained { failed: true, ..Drained::default() }, Misfit::default())
            }
        }
    }
}

impl Running {
    fn start(config: &CncConfig, layout: &Layout, store: Option<PathBuf>) -> anyhow::Result<Self> {
        let agent = match config.layout {
            LayoutChoice::Guess => {
                let look = look_at_written(config.clone(), layout.clone(), store.clone());
                Agent::start_with_guess(config.clone(), layout.clone(), look)?
            }
            LayoutChoice::Known(_) | LayoutChoice::Whole => Agent::start(config.clone(), layout.clone())?,
        };
        let (of_look, layout) = (config.clone(), layout.clone());
        let look = move || {
            let mut listing = list(&of_look.watch, &of_look.scan_limits()).ok()?;
            leave_out_pointers(&mut listing, &of_look.watch, &layout);
            leave_out_copies(&mut listing, &of_look.watch, &layout);
            left(&of_look, &layout, of_the_application(listing, &of_look.watch, store.as_deref()))
        };
        let reached = Reached { flushes: agent.flushes(), sessions: agent.sessions(), look: Arc::new(look) };
        let control = Control::listen(&config.state_file, reached).inspect_err(|error| {
            let socket = socket_of(&config.state_file);
            tracing::warn!(socket = %socket.display(), %error, "mcr flush and mcr status cannot reach this agent");
        });
        Ok(Self { agent, _control: control.ok() })
    }
}

/// Lists the files that the application has written since the agent began and that belong to no checkpoint.
fn look_at_written(config: CncConfig, layout: Layout, store: Option<PathBuf>) -> Look {
    Arc::new(move || {
        let listing = list(&config.watch, &config.scan_limits()).ok()?;
        let mut listing = of_the_application(listing, &config.watch, store.as_deref());
        leave_out_pointers(&mut listing, &config.watch, &layout);
        leave_out_copies(&mut listing, &config.watch, &layout);
        only_written(&config, &mut listing);
        layout.unplaced(&listing)
    })
}

/// The files that belong to no checkpoint. With a layout of the configuration, a checkpoint may be among these files
/// only if no file matches the layout, and the application has written since the agent began.
fn left(config: &CncConfig, layout: &Layout, listing: Listing) -> Option<Unplaced> {
    let left = layout.unplaced(&listing)?;
    if matches!(config.layout, LayoutChoice::Guess) {
        return Some(left);
    }
    let are_all = !listing.files.iter().any(|path| layout.place(path).is_some());
    Some(Unplaced { are_many: are_all && was_written(config, &listing), ..left })
}
