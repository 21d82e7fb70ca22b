//! Compiles `mcr/v1/mcr.proto` with a compiler written in Rust: nobody needs protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=mcr/v1/mcr.proto");
    let descriptors = protox::compile(["mcr/v1/mcr.proto"], ["."])?;
    // Data and RestoreData carry `Bytes`: shared on the way through, never copied.
    tonic_prost_build::configure().bytes(".mcr.v1").compile_fds(descriptors)?;
    Ok(())
}
