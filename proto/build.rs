//! Compiles the `.proto` files with a compiler written in Rust, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["mcr/v1/mcr.proto", "mcr/gate/v1/gate.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    // The generated Data and RestoreData use `Bytes`, whose copies share memory.
    tonic_prost_build::configure().bytes(".mcr.v1").compile_fds(descriptors)?;
    Ok(())
}
