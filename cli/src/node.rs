//! `mcr node`: the daemon of a node, and the check of the node's configuration.

mod check;
mod slurm_conf;

use crate::args::{NodeArgs, NodeCommand};
use crate::logging::serve_metrics;
use crate::metrics::{UserNames, node_text};
use crate::page::PageSlot;
use crate::refused::{NotPermitted, WrongSetting};
use crate::settings::node_metrics;
use anyhow::{Context, bail};
use mcr_node::cgroup::{Groups, Limits};
use mcr_node::client::SOCKET;
use mcr_node::daemon::{Daemon, Options};
use mcrengine::error_chain::error_chain;
use nix::sys::signal::{SigHandler, Signal, signal};
use sd_notify::NotifyState;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// `cpu.weight` of a worker's control group. The weight matters only if the processors are fully used. The group of a
/// job has the default weight, 100.
const WORKER_CPU_WEIGHT: u32 = 20;
/// Maximum number of threads of a worker, in addition to [`WORKER_THREADS_PER_CORE`].
const WORKER_THREADS: u32 = 256;
/// Maximum number of additional threads of a worker for each core of the node.
const WORKER_THREADS_PER_CORE: u32 = 8;

pub fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(NodeCommand::Check(args)) => return check::run(&args),
        Some(NodeCommand::ReleaseCgroups) => {
            // Without controllers there is nothing to release, and the daemon logs what is wrong.
            let _ = mcr_node::cgroup::release();
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    // If the cluster's file cannot be used, the daemon serves no metrics, but saves jobs.
    let address = node_metrics();
    let metrics = args.log.start_counting(address.as_ref().ok().copied().flatten(), true);
    if let Err(error) = address {
        tracing::warn!(
            error = format!("{error:#}"),
            "the address of the metrics is not known; mcr node check says more"
        );
    }
    // Workers have another working directory, so the paths of their records must be absolute.
    let run_dir = &std::path::absolute(&args.node.run_dir).context("the working directory is not known")?;
    ignore_hangup();
    let uid = nix::unistd::geteuid();
    if !uid.is_root() && !args.own {
        let why = "mcr node needs root, to run workers as the users of the jobs; --own saves only your own jobs";
        return Err(NotPermitted::new(why).into());
    }
    let mode = if args.own { 0o700 } else { 0o755 };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(mode).create(run_dir).with_context(|| run_dir.display().to_string())?;
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let options = Options {
        run_dir: run_dir.clone(),
        own: args.own.then_some(uid.as_raw()),
        min_uid: args.min_uid,
        gate: args.gate_user.as_deref().map(uid_of).transpose()?,
        worker: vec![program.into(), "worker".into()],
        groups: args.cgroups.then(|| groups(args.worker_memory_mib)).flatten(),
    };
    let daemon = Arc::new(Daemon::new(options).with_context(|| run_dir.display().to_string())?);
    let listener = match of_systemd()? {
        Some(listener) => listener,
        None => bind(&run_dir.join(SOCKET), args.own)?,
    };
    if let Some((address, metrics)) = metrics {
        let (daemon, names) = (Arc::clone(&daemon), UserNames::default());
        let text = move |format| node_text(&metrics, Some(&daemon.page()), &names, format);
        serve_metrics(address, text, PageSlot::default());
    }
    let interval = sd_notify::watchdog_enabled().map(|timeout| timeout / 2);
    tracing::info!(run_dir = %run_dir.display(), "serving jobs");
    let _ = sd_notify::notify(&[NotifyState::Ready]); // fails without systemd, which is no error
    daemon.serve(&listener, interval, || {
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        true
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The uid of the gate's user.
fn uid_of(name: &str) -> anyhow::Result<u32> {
    match nix::unistd::User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(WrongSetting(format!(
            "MCR_GATE_USER (--gate-user) is {name:?}, but this node has no such user; create the user as \
             deploy/README.md says, or remove the setting if mcr gate does not run on this node"
        ))
        .into()),
        // A supervisor may start the daemon again, because the cause may be a server of the user database that does
        // not answer yet.
        Err(errno) => Err(errno).with_context(|| format!("looking for {name:?}, the user of the gate")),
    }
}

/// The control groups of the workers. Jobs are saved even without control groups.
fn groups(memory_mib: u64) -> Option<Groups> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let threads = WORKER_THREADS + WORKER_THREADS_PER_CORE * cores;
    match Groups::of_this_process(&Limits { memory_mib, cpu_weight: WORKER_CPU_WEIGHT, threads }) {
        Ok(groups) => {
            let missing = groups.missing().join(" ");
            tracing::info!(missing, "each worker runs in a separate control group");
            Some(groups)
        }
        Err(error) => {
            tracing::warn!(error = error_chain(&error), "workers have no limits of memory, processors and threads");
            None
        }
    }
}

/// Ignores SIGHUP, because the daemon has no configuration to reload. Workers inherit the ignored signal.
#[expect(unsafe_code, reason = "no safe call sets the action of a signal")]
fn ignore_hangup() {
    // SAFETY: `signal` is unsafe because a handler might not be async-signal-safe. This call installs no handler.
    let _ = unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) };
}

/// The socket that systemd opened for this daemon, if systemd started it.
fn of_systemd() -> anyhow::Result<Option<UnixListener>> {
    let mut passed = sd_notify::listen_fds().context("reading the sockets that systemd passed")?;
    match (passed.next(), passed.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => bail!("systemd passed several sockets; one is expected"),
        (Some(descriptor), None) => {
            #[expect(unsafe_code, reason = "systemd passes a descriptor as a number")]
            // SAFETY: systemd opened this descriptor for this process, and nothing else in the process owns it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            Ok(Some(UnixListener::from(descriptor)))
        }
    }
}

/// Creates the socket. The socket of a daemon that has ended is replaced.
fn bind(path: &Path, own: bool) -> anyhow::Result<UnixListener> {
    let shown = || path.display().to_string();
    if UnixStream::connect(path).is_ok() {
        bail!("{}: another mcr node serves this socket", path.display());
    }
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(shown),
    }
    let listener = UnixListener::bind(path).with_context(shown)?;
    // All users may connect, because `mcr job list` asks which jobs are saved.
    let mode = if own { 0o600 } else { 0o666 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).with_context(shown)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_user_of_the_gate_who_does_not_exist_is_a_configuration_error_with_a_remedy() {
        assert_eq!(uid_of("root").expect("every system has root"), 0);
        for name in ["no-such-user-of-mcr", ""] {
            let error = uid_of(name).expect_err("there is no such user");
            assert_eq!(Exit::of_error(&error), Exit::Configuration);
            let said = error.to_string();
            assert!(said.contains(&format!("MCR_GATE_USER (--gate-user) is {name:?}")), "{said}");
            assert!(said.contains("create the user as deploy/README.md says, or remove the setting"), "{said}");
        }
    }
}
