//! A curve of any length in a bounded number of points. Beyond that number neighbours become one
//! point, which keeps their mean, their least and their largest.

/// Some steps in a row that have become one point.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    /// The first of them.
    pub step: u64,
    /// How many finite numbers there were among them.
    pub count: u64,
    pub sum: f64,
    pub least: f64,
    pub most: f64,
}

impl Point {
    fn join(&mut self, other: &Point) {
        self.step = self.step.min(other.step);
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }
}

#[derive(Debug)]
pub(super) struct Series {
    pub name: String,
    pub points: Vec<Point>,
    pub last: f64,
    /// How many numbers were not finite, and the step of the first.
    pub lost: u64,
    pub first_lost: Option<u64>,
    /// Steps that one point stands for.
    stride: u64,
    points_max: usize,
}

impl Series {
    pub fn new(name: String, points_max: usize) -> Series {
        let (points, last) = (Vec::new(), f64::NAN);
        Series { name, points, last, lost: 0, first_lost: None, stride: 1, points_max }
    }

    pub fn add(&mut self, step: u64, number: f64) {
        self.last = number;
        if !number.is_finite() {
            self.lost += 1;
            self.first_lost.get_or_insert(step);
            return;
        }
        self.push(Point { step, count: 1, sum: number, least: number, most: number });
        if self.points.len() > self.points_max {
            self.stride *= 2;
            for point in std::mem::take(&mut self.points) {
                self.push(point);
            }
        }
    }

    fn push(&mut self, point: Point) {
        // Nearly always the last point, but values may complete in another order than their steps.
        let part = |point: &Point| point.step / self.stride;
        let at = self.points.partition_point(|before| part(before) < part(&point));
        match self.points.get_mut(at) {
            Some(own) if own.step / self.stride == part(&point) => own.join(&point),
            _ => self.points.insert(at, point),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Series;

    #[test]
    fn a_long_curve_keeps_its_mean_its_ends_and_its_bounds_in_few_points() {
        let mut series = Series::new("loss".into(), 100);
        let number = |step: u64| (step as f64 * 0.37).sin() + step as f64 * 1e-4;
        for step in 1..=100_000 {
            series.add(step, if step == 77_777 { 1e3 } else { number(step) });
            assert!(series.points.len() <= 100);
        }
        let points = &series.points;
        assert!(points.len() >= 49, "{} points", points.len());
        assert_eq!(points.iter().map(|p| p.count).sum::<u64>(), 100_000);
        assert!(points.is_sorted_by(|a, b| a.step < b.step) && points[0].step == 1);
        // One step that stands out is not averaged away.
        assert_eq!(points.iter().map(|p| p.most).fold(0.0, f64::max), 1e3);
        let sum: f64 = points.iter().map(|p| p.sum).sum();
        let want: f64 = (1..=100_000).map(|k| if k == 77_777 { 1e3 } else { number(k) }).sum();
        assert!((sum - want).abs() < 1e-6 * want, "{sum} {want}");
        assert_eq!(series.last, number(100_000));
    }

    #[test]
    fn what_comes_late_finds_its_place() {
        let (mut series, mut late) = (Series::new("a".into(), 16), Series::new("a".into(), 16));
        (1..=100).for_each(|step| series.add(step, step as f64));
        let order = (1..=100).filter(|step| step % 3 > 0).chain((1..=100).filter(|s| s % 3 == 0));
        order.for_each(|step| late.add(step, step as f64));
        assert_eq!(series.points, late.points);
    }

    #[test]
    fn what_is_not_finite_is_counted_and_spoils_no_point() {
        let mut series = Series::new("loss".into(), 16);
        for (step, number) in [(1, 2.0), (2, f64::NAN), (3, f64::INFINITY), (4, 4.0)] {
            series.add(step, number);
        }
        assert_eq!((series.lost, series.first_lost, series.points.len()), (2, Some(2), 2));
        assert!(series.points.iter().all(|p| p.sum.is_finite()));
    }
}
