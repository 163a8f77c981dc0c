//! Tells the crate whether it is built without optimisation: a device then says so once
//! (`src/host/unoptimised.rs`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo::rustc-cfg=futensor_unoptimised");
    }
}
