use std::time::Duration;

use epwire::group::{GroupOptions, Step};
use epwire::rendezvous::BootstrapError::{
    self, Aborted, Evicted, Fenced, NoQuorum, Retired, ServerLost, Timeout,
};
use epwire::{EpBuffer, EpConfig, Error, Group};
use tokio::time::sleep;

/// What every rank runs, those that are there from the beginning and those that come later, until `run` says that it is over.
pub async fn serve(
    options: GroupOptions,
    config: EpConfig,
    mut run: impl AsyncFnMut(&Group, &EpBuffer, &Step) -> Result<bool, Error>,
) -> Result<(), Error> {
    const PAUSE: Duration = Duration::from_millis(100);
    let group = loop {
        match Group::join(options.clone()).await {
            Err(Fenced { .. }) => sleep(PAUSE).await, // whoever had the rank before is not known to have ended
            joined => break joined?,
        }
    };
    let buffer = EpBuffer::create(&group, config).await?;
    loop {
        let mut error: BootstrapError = match group.step().await {
            // `step.change` tells who has gone and who has come: from here on the buffer works with those.
            Ok(step) if run(&group, &buffer, &step).await? => continue,
            Ok(_) => return Ok(group.leave().await?),
            Err(Error::Bootstrap(error)) => *error,
            Err(error) => return Err(error),
        };
        // This rank was stopped for so long that the others went on: it comes back as a newcomer does.
        if let Evicted { .. } = error {
            let Err(other) = group.rejoin().await else { continue };
            error = other;
        }
        match error {
            // Somebody has called `retire` for this rank: it has run its last step.
            Retired { .. } => return Ok(group.leave().await?),
            // Another process has its rank, and may end.
            Fenced { .. } => sleep(PAUSE).await,
            // Nobody has decided anything yet: it asks again, unless no server can come back.
            Timeout { .. } | ServerLost { .. } | NoQuorum { .. } | Aborted { .. }
                if group.membership().outage.is_none_or(|outage| !outage.is_final) => {}
            error => return Err(error.into()),
        }
    }
}
