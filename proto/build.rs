//! Compiles `mcr/v1/mcr.proto` with a compiler written in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=mcr/v1/mcr.proto");
    let descriptors = protox::compile(["mcr/v1/mcr.proto"], ["."])?;
    // The generated Data and RestoreData use `Bytes`, whose copies share memory.
    tonic_prost_build::configure().bytes(".mcr.v1").compile_fds(descriptors)?;
    Ok(())
}
