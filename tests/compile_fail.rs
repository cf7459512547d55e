//! Misuse that can not be written down: each file of `compile_fail/` must be refused by the compiler, for the reason in its
//! `.stderr`. The texts are those of rustc 1.95; `TRYBUILD=overwrite cargo test --test compile_fail` writes them anew.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
