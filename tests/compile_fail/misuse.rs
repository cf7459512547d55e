//! Misuse that the compiler rejects: each file of `cases/` must be refused for the reason in its `.stderr`. The texts
//! are those of rustc 1.95; `TRYBUILD=overwrite` before the command in Cargo.toml writes them again.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("cases/*.rs");
}
