//! `--plot`: median and floor over tokens, a curve per case.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

use crate::Error;
use crate::report::Row;

/// Draws solid medians with points and dashed floors into an SVG file, both axes logarithmic.
pub fn plot(rows: &[Row], file: &Path) -> Result<(), Error> {
    let drawn = draw(rows, SVGBackend::new(file, SIZE));
    drawn.map_err(|error| format!("cannot draw {}: {error}", file.display()).into())
}

const SIZE: (u32, u32) = (1100, 700);

fn draw(rows: &[Row], backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let tokens = range(rows.iter().map(|row| f64::from(row.tokens)));
    let times = range(rows.iter().flat_map(|row| [row.p50_us, row.floor_us]));
    let mut chart = ChartBuilder::on(&root)
        .caption("median (solid) and floor (dashed)", ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(tokens.log_scale(), times.log_scale())?;
    chart.configure_mesh().x_desc("tokens per rank").y_desc("microseconds").draw()?;

    let mut names: Vec<String> = rows.iter().map(Row::name).collect();
    names.dedup();
    names.sort();
    names.dedup();
    for (i, name) in names.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let mut curve: Vec<&Row> = rows.iter().filter(|row| row.name() == *name).collect();
        curve.sort_by_key(|row| row.tokens);
        let points = |time: fn(&Row) -> f64| curve.iter().map(move |row| (f64::from(row.tokens), time(row)));
        chart
            .draw_series(LineSeries::new(points(|row| row.p50_us), color.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
        chart.draw_series(DashedLineSeries::new(points(|row| row.floor_us), 6, 4, color.stroke_width(1)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

/// The values with a margin, for an axis whose ends must differ.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(l, h), v| (l.min(v), h.max(v)));
    (low.min(high) / 1.3).max(f64::MIN_POSITIVE)..high * 1.3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Case;
    use crate::report::tests::row;

    #[test]
    fn every_case_has_a_curve_and_a_name() {
        let rows = [row(Case::Dispatch, 1, 1.0, 0), row(Case::Pair, 1, 2.0, 0), row(Case::Pair, 128, 3.0, 0)];
        let file = std::env::temp_dir().join(format!("epwire-bench-{}.svg", std::process::id()));
        plot(&rows, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(svg.matches("<polyline").count() >= 2, "{svg}");
        assert!(svg.contains("dispatch bf16 rank-major") && svg.contains("pair bf16 rank-major"), "{svg}");
    }
}
