use epwire::group::{GroupOptions, Step};
use epwire::rendezvous::BootstrapError;
use epwire::{EpBuffer, EpConfig, Error, Group};

/// What every rank runs, those that are there from the beginning and those that come later, until `run` says that it is over.
pub async fn serve(
    options: GroupOptions,
    config: EpConfig,
    mut run: impl AsyncFnMut(&EpBuffer, &Step) -> Result<bool, Error>,
) -> Result<(), Error> {
    let group = Group::join(options).await?;
    let buffer = EpBuffer::create(&group, config).await?;
    loop {
        match group.step().await {
            // `step.change` tells who has gone and who has come: from here on the buffer works with those.
            Ok(step) if run(&buffer, &step).await? => {}
            Ok(_) => return Ok(group.leave().await?),
            // Somebody has called `retire` for this rank: it has run its last step.
            Err(Error::Bootstrap(error)) if matches!(*error, BootstrapError::Retired { .. }) => {
                return Ok(group.leave().await?);
            }
            // This rank was stopped for so long that the others went on: it comes back as a newcomer does.
            Err(Error::Bootstrap(error)) if matches!(*error, BootstrapError::Evicted { .. }) => {
                group.rejoin().await?;
            }
            Err(error) => return Err(error),
        }
    }
}
