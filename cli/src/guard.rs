//! Checks of the owner and the permissions of a store. The store must belong to the user: other users must not be
//! able to add, replace or remove checkpoints.

use crate::output::{name_of, tell};
use crate::refused::NotPermitted;
use nix::unistd::{Uid, User, geteuid};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Advice for a store that a group shares.
const SHARED: &str = "If a group shares the store, write shared-store = true beside store, or give --shared-store";
/// The permission bit of a directory whose entries only their owners can rename, as in /tmp.
const STICKY: u32 = 0o1000;

/// Refuses a store that is not the user's own: another user owns it, other users can write to it, or another user can
/// replace it. `is_shared`: the user permits that another user owns the store, and that a group can write to it.
pub fn check_store(store: &Path, is_shared: bool) -> Result<(), NotPermitted> {
    let own = geteuid().as_raw();
    let refuse =
        |why: String| Err(NotPermitted::new(format!("the store {} is not used: {why}", name_of(store))).at(store));
    if let Some(why) = replaceable(store) {
        return refuse(why);
    }
    let about = match std::fs::metadata(store) {
        Ok(about) => about,
        Err(error) => return refuse(error.to_string()),
    };
    let (owner, mode) = (user(about.uid()), about.mode() & 0o7777);
    if is_shared {
        return Ok(());
    }
    if about.uid() != own {
        return refuse(format!(
            "it belongs to {owner} (mode {mode:04o}), and this process to {}; use a directory of your own, or \
             create one with mkdir -m 700. {SHARED}",
            user(own)
        ));
    }
    if mode & 0o020 != 0 {
        return refuse(format!(
            "it belongs to {owner} and has mode {mode:04o}, so its group can change checkpoints; chmod go-w {}. \
             {SHARED}",
            name_of(store)
        ));
    }
    Ok(())
}

/// Warns before a restart if any user could have changed the store. A store that belongs to another user may be read,
/// because the user named this store.
pub fn warn_of_store(store: &Path) {
    if let Some(why) = replaceable(store) {
        tell(format!("the store {}: {why}", name_of(store)));
    }
}

/// The reason why any user of the system could change the store, or replace the store with another directory. `None`
/// if owners and permissions prevent such changes.
fn replaceable(store: &Path) -> Option<String> {
    // With a trailing slash, the system would follow a link, so the slash is removed.
    let store: PathBuf = store.components().collect();
    let link = std::fs::symlink_metadata(&store).ok()?;
    if link.is_symlink() && !is_trusted(&link) {
        return Some(format!(
            "it is a symbolic link of {}, who can let it point elsewhere; name the directory itself",
            user(link.uid())
        ));
    }
    let real = store.canonicalize().ok()?;
    let about = std::fs::metadata(&real).ok()?;
    let mode = about.mode() & 0o7777;
    if mode & 0o002 != 0 {
        return Some(format!(
            "it belongs to {} and has mode {mode:04o}, so all users can change checkpoints; chmod o-w {}",
            user(about.uid()),
            name_of(&real)
        ));
    }
    let open = real.ancestors().skip(1).find_map(|dir| {
        let mode = std::fs::metadata(dir).ok()?.mode() & 0o7777;
        (mode & 0o002 != 0 && mode & STICKY == 0).then_some((dir, mode))
    });
    open.map(|(dir, mode)| {
        let dir = name_of(dir);
        format!("{dir} has mode {mode:04o}, so all users can put another directory in its place; chmod o-w {dir}")
    })
}

/// Whether this user or root owns the file.
fn is_trusted(about: &Metadata) -> bool {
    [0, geteuid().as_raw()].contains(&about.uid())
}

/// The name and the number of a user.
pub fn user(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// A directory with a store of this mode.
    fn store(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        std::fs::create_dir(&store).expect("made");
        set(&store, mode);
        (dir, store)
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    }

    fn refusal(store: &Path, is_shared: bool) -> String {
        check_store(store, is_shared).expect_err("refused").to_string()
    }

    #[test]
    fn a_store_that_only_its_user_can_change_is_used() {
        for mode in [0o700, 0o750, 0o755] {
            let (_dir, store) = store(mode);
            assert!(check_store(&store, false).is_ok() && check_store(&store, true).is_ok(), "{mode:o}");
        }
        let (dir, store) = store(0o700);
        symlink(&store, dir.path().join("link")).expect("linked");
        assert!(check_store(&dir.path().join("link/"), false).is_ok(), "a link of the user itself");
    }

    #[test]
    fn a_store_that_its_group_can_change_is_used_only_if_the_user_shares_it() {
        let (_dir, store) = store(0o2770);
        let said = refusal(&store, false);
        assert!(said.contains("has mode 2770, so its group can change checkpoints; chmod go-w"), "{said}");
        assert!(said.contains("shared-store = true"), "{said}");
        assert!(check_store(&store, true).is_ok());
    }

    #[test]
    fn a_store_that_everyone_can_change_or_replace_is_never_used() {
        let (_dir, open) = store(0o1777);
        for is_shared in [false, true] {
            assert!(refusal(&open, is_shared).contains("all users can change checkpoints; chmod o-w"));
        }
        let (dir, store) = store(0o700);
        set(dir.path(), 0o777);
        for is_shared in [false, true] {
            assert!(refusal(&store, is_shared).contains("all users can put another directory in its place"));
        }
        set(dir.path(), 0o1777); // as /tmp
        assert!(check_store(&store, false).is_ok());
    }

    /// Only root can give files away, so this test does nothing for other users.
    #[test]
    fn a_store_or_a_link_of_another_user_is_refused_by_name_and_mode() {
        if !geteuid().is_root() {
            return;
        }
        let (dir, store) = store(0o700);
        chown(&store, Some(4_000_001), None).expect("given away");
        let said = refusal(&store, false);
        assert!(said.contains("it belongs to uid 4000001 (mode 0700), and this process to root (uid 0)"), "{said}");
        assert!(check_store(&store, true).is_ok());
        chown(&store, Some(0), None).expect("taken back");
        let link = dir.path().join("link");
        symlink(&store, &link).expect("linked");
        lchown(&link, Some(4_000_001), None).expect("given away");
        for path in [link.clone(), link.join("")] {
            for is_shared in [false, true] {
                assert!(refusal(&path, is_shared).contains("it is a symbolic link of uid 4000001"));
            }
        }
    }
}
