use epwire::{EpBuffer, Group, Mask};

/// On every survivor, with the buffer it has, and on the newcomer, with a new `EpBuffer::unconnected`.
pub async fn admit(
    group: &Group,
    buffer: &EpBuffer,
    newcomer: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut together = group.active().mask; // on standby: of those who are to let it in
    together.insert(newcomer);
    let here = group.rank();
    let involved = |peer: &u32| *peer != here && (here == newcomer || *peer == newcomer);
    let mut blobs = vec![Vec::new(); group.world() as usize];
    for peer in together.iter().filter(involved) {
        blobs[peer as usize] = buffer.export(peer)?;
    }
    let blobs = group.exchange_among(together, "admit", blobs).await?;
    buffer.connect_all(&blobs).await?; // skips the empty ones
    let decision = group.agree_active(Mask::EMPTY, true).await?;
    buffer.set_active(&decision.mask, decision.epoch, 0)?;
    Ok(())
}
