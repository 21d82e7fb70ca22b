//! End-to-end tests with the real binary, real HDF5 files, real gRPC, and real processes that are killed by SIGKILL.

mod bench;
mod bounds;
mod command_line;
mod companions;
mod configuration;
mod corpus;
mod daemons;
mod ending;
mod full_disk;
mod gate;
mod guessing;
mod identity;
mod incarnations;
mod kills;
mod looking_back;
mod node;
mod owners;
mod pruning;
mod restoring;
mod saving;
mod settings;
mod support;
mod watching;
