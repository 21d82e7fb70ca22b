//! Certificates of agents and aggregators: `mcr cert init`, `mcr cert rotate`, and the TLS settings of connections.
//!
//! A user owns a certificate authority: `cluster.key` and `cluster.pem` in `~/.config/mcr`. With these files, each
//! process makes a certificate in memory. The home directory of a cluster is the same on all nodes, so one command
//! for each user is enough.

use crate::advice::{Advised, At, of_identity};
use crate::args::{CertCommand, CertInitArgs, CertRotateArgs};
use crate::exit::Exit;
use crate::guard::user;
use crate::output::{name_of, print, print_json, printed};
use crate::refused::{NoIdentity, NotPermitted};
use crate::settings::{CLUSTER_FILE, cluster_has_tls};
use anyhow::{Context, bail};
use mcr_anc::config::Listen;
use mcr_proto::tls::{Authority, Identity, IdentityError, Security, needs_tls};
use nix::fcntl::OFlag;
use nix::unistd::{User, geteuid};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEY: &str = "cluster.key";
const CERTIFICATES: &str = "cluster.pem";
/// Name of the file with the new key, until this file replaces `cluster.key`.
const NEW_KEY: &str = "cluster.key.new";
/// Maximum time to wait for another `mcr cert init` that has written the key but not yet the certificate.
const OTHER_INIT_MAX: Duration = Duration::from_secs(2);
/// Maximum length of each file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

pub fn run(command: CertCommand) -> anyhow::Result<ExitCode> {
    match command {
        CertCommand::Init(args) => init(args),
        CertCommand::Rotate(args) => rotate(args),
    }
}

fn init(CertInitArgs { name, dir, json }: CertInitArgs) -> anyhow::Result<ExitCode> {
    let dir = dir.map_or_else(directory, Ok)?;
    if dir.join(KEY).symlink_metadata().is_ok() {
        return keep(&dir, json);
    }
    let authority = Authority::make(&name)?;
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&dir).with_context(|| At::new(&dir, "cannot be made"))?;
    check_directory(&dir)?;
    let key = dir.join(KEY);
    if let Err(error) = write_new(&key, 0o400, &authority.key) {
        if error.kind() == ErrorKind::AlreadyExists {
            return keep(&dir, json);
        }
        return Err(error).with_context(|| At::new(&key, "cannot be written"));
    }
    let certificates = dir.join(CERTIFICATES);
    match std::fs::remove_file(&certificates) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => write_new(&certificates, 0o644, &authority.certificates),
    }
    .with_context(|| At::new(&certificates, "cannot be written"))?;
    let shown = key.display().to_string();
    let result = match json {
        true => print_result("made", &[key, certificates]),
        false => print(&format!("made {shown} and {CERTIFICATES}; processes on other nodes need the same two files\n")),
    };
    printed(result, || Some(format!("{shown} and {CERTIFICATES} ARE made")))?;
    Ok(Exit::Done.into())
}

/// Prints what was done with these files, as JSON.
fn print_result(outcome: &str, files: &[PathBuf]) -> anyhow::Result<()> {
    let files: Vec<String> = files.iter().map(|file| name_of(file)).collect();
    print_json(&serde_json::json!({ "outcome": outcome, "files": files }))
}

/// Keeps a usable key, because each start of a job script may call `mcr cert init`, and two scripts may call it at
/// the same time.
fn keep(dir: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let key = dir.join(KEY).display().to_string();
    let until = Instant::now() + OTHER_INIT_MAX;
    loop {
        let unusable = match identity(dir) {
            Ok(Some(_)) if json => {
                print_result("kept", &[dir.join(KEY), dir.join(CERTIFICATES)])?;
                return Ok(Exit::Done.into());
            }
            Ok(Some(_)) => {
                print(&format!("{key} exists already; nothing was changed\n"))?;
                return Ok(Exit::Done.into());
            }
            Ok(None) => anyhow::anyhow!("{key} was removed at this moment; run mcr cert init again"),
            Err(error) if error.is::<NotPermitted>() => return Err(error),
            Err(error) => error.context("there is a key already, which cannot be used"),
        };
        // Another process may be writing the files at this moment.
        if Instant::now() > until {
            return Err(unusable);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A step of the replacement of a key. The existing files show which step is next.
enum Step {
    /// Both keys are trusted.
    Added,
    /// The new key is used.
    Switched,
    /// Only the new key is trusted.
    Removed,
}

fn rotate(CertRotateArgs { dir, wait, step, json }: CertRotateArgs) -> anyhow::Result<ExitCode> {
    let dir = dir.map_or_else(directory, Ok)?;
    let mut changed = Vec::new();
    loop {
        let done = next_step(&dir)?;
        let (outcome, what, file) = match done {
            Step::Added => ("added", "1 of 3: processes trust the old and the new key", CERTIFICATES),
            Step::Switched => ("switched", "2 of 3: processes use the new key", KEY),
            Step::Removed => ("removed", "3 of 3: processes trust only the new key", CERTIFICATES),
        };
        let (file, is_last) = (dir.join(file), step || matches!(done, Step::Removed));
        if !json {
            print(&format!("step {what} ({} has changed)\n", file.display()))?;
        }
        if !changed.contains(&file) {
            changed.push(file);
        }
        if json && is_last {
            print_result(outcome, &changed)?;
        }
        if matches!(done, Step::Removed) || json && is_last {
            return Ok(Exit::Done.into());
        }
        if step {
            print("copy that file to all nodes, wait a minute, and run mcr cert rotate --step again\n")?;
            return Ok(Exit::Done.into());
        }
        std::thread::sleep(Duration::from_secs(wait));
    }
}

fn next_step(dir: &Path) -> anyhow::Result<Step> {
    let Some(files) = authority_in(dir)? else {
        let key = dir.join(KEY);
        let what = format!("there is no {}", key.display());
        return Err(Advised::new(what, "run mcr cert init once").at(&key).into());
    };
    let failed = |error: IdentityError| unusable(dir, &error);
    let certificates = files.certificates().map_err(failed)?;
    let (path, new) = (dir.join(KEY), dir.join(NEW_KEY));
    let replace_certificates = |kept: &[String]| {
        let text = files.with_certificates(kept).map_err(failed)?.certificates;
        replace(&dir.join(CERTIFICATES), 0o644, &text)
    };
    let kept: Vec<String> = certificates.iter().filter(|(_, is_own)| *is_own).map(|(pem, _)| pem.clone()).collect();
    let new_key = match open(&new) {
        Ok(file) => read(&new, file, 0o077, "chmod 400")?,
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| new.display().to_string());
        }
        // The new key has already replaced the old key, so only the old certificate is left to remove.
        Err(_) if !kept.is_empty() && kept.len() < certificates.len() => {
            return replace_certificates(&kept).map(|()| Step::Removed);
        }
        Err(_) => {
            let key = Authority::make(files.cluster().map_err(failed)?).map_err(failed)?.key;
            write_new(&new, 0o400, &key).with_context(|| new.display().to_string())?;
            key
        }
    };
    let with_new = Authority { key: new_key.clone(), certificates: files.certificates.clone() };
    if with_new.certificates().map_err(failed)?.iter().any(|(_, is_own)| *is_own) {
        std::fs::rename(&new, &path).with_context(|| path.display().to_string())?;
        return Ok(Step::Switched);
    }
    let mut all: Vec<String> = certificates.into_iter().map(|(pem, _)| pem).collect();
    all.push(files.certificate_of(&new_key).map_err(failed)?);
    replace_certificates(&all).map(|()| Step::Added)
}

/// Replaces a file in one step, so that no other process reads an incomplete file.
fn replace(path: &Path, mode: u32, text: &str) -> anyhow::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let replaced = write_new(&temporary, mode, text).and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    replaced.with_context(|| path.display().to_string())
}

fn write_new(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The directory of `cluster.key` and `cluster.pem`: MCR_CERT_DIR, or `mcr` in the user's directory of configuration
/// files. A worker of `mcr node` has no HOME in its environment.
fn directory() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable("MCR_CERT_DIR") {
        return Ok(dir);
    }
    if let Some(dir) = variable("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute()) {
        return Ok(dir.join("mcr"));
    }
    let uid = geteuid();
    let home = match variable("HOME") {
        Some(home) => home,
        None => User::from_uid(uid)?.with_context(|| format!("there is no user with the number {uid}"))?.dir,
    };
    Ok(home.join(".config/mcr"))
}

/// How a process protects the connections that it accepts on `listen`, and its connections to the addresses in
/// `dialled`. Reads the user's files only if one of these connections needs TLS.
pub fn security(listen: Option<&Listen>, dialled: &[String]) -> anyhow::Result<Security> {
    let mut addresses = listen.map(Listen::to_string).into_iter().chain(dialled.iter().cloned());
    let Some(address) = addresses.find(|address| needs_tls(address)) else { return Ok(Security::Plain) };
    if !cluster_has_tls()? {
        tracing::warn!(
            address,
            "connections are not encrypted, and users are not checked: the cluster's file has tls = \"off\""
        );
        return Ok(Security::Plain);
    }
    let dir = directory()?;
    match identity(&dir) {
        Ok(Some(identity)) => {
            let again = move || match authority_in(&dir) {
                Ok(Some(files)) => Ok(files),
                Ok(None) => Err(format!("there is no {}", dir.join(KEY).display())),
                Err(error) => Err(format!("{error:#}")),
            };
            Ok(Security::Tls(Arc::new(identity.reading_again(Arc::new(again)))))
        }
        Ok(None) => Err(NoIdentity(format!(
            "connections to {address} need a certificate, and there is no {}; run mcr cert init once, or write \
             tls = \"off\" in the cluster's file ({CLUSTER_FILE}) if all users of the network may read and write all \
             checkpoints",
            dir.join(KEY).display()
        ))
        .into()),
        Err(error) => {
            let why = format!("connections to {address} need a certificate: {error:#}");
            Err(match error.downcast_ref::<NotPermitted>() {
                Some(inner) => NotPermitted { why, path: inner.path.clone() }.into(),
                None => NoIdentity(why).into(),
            })
        }
    }
}

/// The identity of this user. `None` if there is no key.
fn identity(dir: &Path) -> anyhow::Result<Option<Identity>> {
    let Some(files) = authority_in(dir)? else { return Ok(None) };
    let identity = Identity::new(&files, geteuid().as_raw());
    identity.map(Some).map_err(|error| unusable(dir, &error))
}

/// The error of files that cannot be used. The causes are words of a library, so only the first text is shown.
fn unusable(dir: &Path, error: &IdentityError) -> anyhow::Error {
    Advised::new(format!("{}: {error}", dir.display()), of_identity(error)).at(dir).into()
}

/// The text of this user's `cluster.pem`. The key is not read.
pub fn own_certificates() -> anyhow::Result<String> {
    let dir = directory()?;
    let path = dir.join(CERTIFICATES);
    let file = match open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            bail!("there is no {}; run mcr cert init once", path.display());
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    check_directory(&dir)?;
    read(&path, file, 0o022, "chmod 644")
}

/// `cluster.key` and `cluster.pem` of this user. The owner and the mode of both files must be right. `None` if there
/// is no key.
pub fn authority_in(dir: &Path) -> anyhow::Result<Option<Authority>> {
    let path = dir.join(KEY);
    let key = match open(&path) {
        Ok(key) => key,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32) => {
            let why = format!("{}: it is a symbolic link; it must be a file", path.display());
            return Err(NotPermitted::new(why).at(&path).into());
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    check_directory(dir)?;
    let key = read(&path, key, 0o077, "chmod 400")?;
    let path = dir.join(CERTIFICATES);
    let way_out = "copy it from another node, or remove both files and run mcr cert init again";
    let certificates = open(&path).with_context(|| format!("{}: {way_out}", path.display()))?;
    let certificates = read(&path, certificates, 0o022, "chmod 644")?;
    Ok(Some(Authority { key, certificates }))
}

/// Opens a file. Fails for a symbolic link, and does not wait for the writer of a FIFO.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(path)
}

/// Reads a file of this user. Fails if other users have one of the permissions in `forbidden`.
fn read(path: &Path, mut file: File, forbidden: u32, repair: &str) -> anyhow::Result<String> {
    let name = path.display();
    let about = file.metadata().with_context(|| name.to_string())?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        bail!("{name}: it must be a file of at most {} KiB", FILE_BYTES_MAX >> 10);
    }
    check_owner(path, &about)?;
    if about.mode() & forbidden != 0 {
        let mode = about.mode() & 0o7777;
        let why = format!("{name}: it has mode {mode:04o}, so other users have access to it; {repair} {name}");
        return Err(NotPermitted::new(why).at(path).into());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(|| name.to_string())?;
    Ok(text)
}

/// Refuses a directory to which other users can write, because these users could replace the files.
fn check_directory(dir: &Path) -> anyhow::Result<()> {
    let about = std::fs::metadata(dir).with_context(|| dir.display().to_string())?;
    check_owner(dir, &about)?;
    if about.mode() & 0o022 != 0 {
        let (name, mode) = (dir.display(), about.mode() & 0o7777);
        let why = format!("{name}: it has mode {mode:04o}, so other users may write it; chmod go-w {name}");
        return Err(NotPermitted::new(why).at(dir).into());
    }
    Ok(())
}

fn check_owner(path: &Path, about: &Metadata) -> anyhow::Result<()> {
    let own = geteuid().as_raw();
    if about.uid() != own {
        let (owner, own) = (user(about.uid()), user(own));
        let why = format!("{}: it belongs to {owner}, but this process to {own}", path.display());
        return Err(NotPermitted::new(why).at(path).into());
    }
    Ok(())
}
