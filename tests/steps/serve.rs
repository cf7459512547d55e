use std::time::Duration;

use epwire::group::{GroupOptions, Recovery, Step};
use epwire::rendezvous::BootstrapError::Fenced;
use epwire::{EpBuffer, EpConfig, Error, Group};
use tokio::time::sleep;

/// What every rank runs, those that are there from the beginning and those that come later, until `run` says that it is over.
pub async fn serve(
    options: GroupOptions,
    config: EpConfig,
    mut run: impl AsyncFnMut(&Group, &EpBuffer, &Step) -> Result<bool, Error>,
) -> Result<(), Error> {
    let group = loop {
        match Group::join(options.clone()).await {
            // Whoever had the rank before is not known to have ended.
            Err(Fenced { .. }) => sleep(Duration::from_millis(100)).await,
            joined => break joined?,
        }
    };
    let buffer = EpBuffer::create(&group, config).await?;
    loop {
        match group.step().await {
            // `step.change` tells who has gone and who has come: from here on the buffer works with those.
            Ok(step) if run(&group, &buffer, &step).await? => {}
            Ok(_) => return Ok(group.leave().await?),
            // Nothing is decided yet, or this rank was stopped for so long that the others went on, and is let in again. Or somebody
            // has called `retire` for it.
            Err(error) => match group.recover(error).await? {
                Recovery::StepAgain => {}
                Recovery::Leave => return Ok(group.leave().await?),
            },
        }
    }
}
