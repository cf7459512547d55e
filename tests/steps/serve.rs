use std::time::Duration;

use epwire::group::{GroupOptions, Recovery, Step};
use epwire::rendezvous::BootstrapError::Fenced;
use epwire::{EpBuffer, EpConfig, Error, Group};
use tokio::time::sleep;

/// What every rank runs, the initial ranks as well as those that join later, until `run` returns false.
pub async fn serve(
    options: GroupOptions,
    config: EpConfig,
    mut run: impl AsyncFnMut(&Group, &EpBuffer, &Step) -> Result<bool, Error>,
) -> Result<(), Error> {
    let group = loop {
        match Group::join(options.clone()).await {
            // The former process of this rank may still be running.
            Err(Fenced { .. }) => sleep(Duration::from_millis(100)).await,
            joined => break joined?,
        }
    };
    let buffer = EpBuffer::create(&group, config).await?;
    loop {
        match group.step().await {
            // `step.change` says which ranks have left and joined: from here on the buffer works with the new members.
            Ok(step) if run(&group, &buffer, &step).await? => {}
            Ok(_) => return Ok(group.leave().await?),
            // Nothing is decided yet; or the others have continued without this rank while it was stopped, and it is admitted
            // again; or a member has called `retire` for it.
            Err(error) => {
                if group.recover(error).await? == Recovery::Leave {
                    return Ok(group.leave().await?);
                }
            }
        }
    }
}
