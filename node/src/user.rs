//! Drops all privileges of a process permanently.

use nix::errno::Errno;
use nix::sys::prctl::set_no_new_privs;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Uid, User, geteuid, initgroups, setresgid, setresuid, setsid, setuid};
use std::ffi::CString;

/// Why a process cannot become a user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// There is no user with this uid.
    #[error("there is no user with the number {0} on this node")]
    Unknown(u32),
    /// A system call failed.
    #[error("{call}")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// Error of the call.
        source: Errno,
    },
    /// The process could become root again.
    #[error("the process could become root again")]
    NotForGood,
}

/// Makes this process a process of user `uid`, in a new session, with the user's groups and without any privilege.
/// The worker calls this function, not the daemon, because the function asks the name service for the user, which may
/// be slow. If the process already belongs to the user, only the session, the umask and `no_new_privs` are set.
pub fn become_user(uid: u32) -> Result<User, UserError> {
    let failed = |call: &'static str| move |source: Errno| UserError::Call { call, source };
    let user = User::from_uid(Uid::from_raw(uid)).map_err(failed("getpwuid"))?.ok_or(UserError::Unknown(uid))?;
    // `setsid` fails if the process already leads a process group. In this case, the process keeps its session.
    let _ = setsid();
    umask(Mode::from_bits_truncate(0o077));
    if geteuid() != user.uid {
        let name = CString::new(user.name.clone()).map_err(|_| UserError::Unknown(uid))?;
        initgroups(&name, user.gid).map_err(failed("initgroups"))?;
        setresgid(user.gid, user.gid, user.gid).map_err(failed("setresgid"))?;
        setresuid(user.uid, user.uid, user.uid).map_err(failed("setresuid"))?;
    }
    if !user.uid.is_root() && setuid(Uid::from_raw(0)).is_ok() {
        return Err(UserError::NotForGood);
    }
    set_no_new_privs().map_err(failed("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    Ok(user)
}
