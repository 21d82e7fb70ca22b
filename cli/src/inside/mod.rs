//! The commands that look inside a checkpoint without restoring it: `mcr ls`, `mcr cat`, `mcr extract`, `mcr diff`.

pub mod args;
mod cat;
mod change;
mod diff;
mod extra;
mod extract;
mod ls;
mod npy;
mod open;
mod sides;
mod sparse;

pub use cat::run as cat;
pub use diff::run as diff;
pub use extract::run as extract;
pub use ls::run as ls;
