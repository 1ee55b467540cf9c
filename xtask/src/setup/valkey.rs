pub(crate) fn install_missing() -> Result<(), String> {
    Ok(())
}
