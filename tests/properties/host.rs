//! A plain sequential evaluator: whole numbers in row-major order, one obvious loop an op.
//!
//! Knows nothing of the library. Data are small whole numbers, so that float32 results are exact.

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    pub dims: Vec<usize>,
    pub data: Vec<i64>,
}

impl Host {
    /// The value of `f` at every index of a shape.
    pub fn build(dims: &[usize], mut f: impl FnMut(&[usize]) -> i64) -> Host {
        let n: usize = dims.iter().product();
        let mut index = vec![0; dims.len()];
        let mut data = Vec::with_capacity(n);
        for _ in 0..n {
            data.push(f(&index));
            for d in (0..dims.len()).rev() {
                index[d] += 1;
                if index[d] < dims[d] {
                    break;
                }
                index[d] = 0;
            }
        }
        Host { dims: dims.to_vec(), data }
    }

    pub fn at(&self, index: &[usize]) -> i64 {
        let place = index.iter().zip(&self.dims).fold(0, |place, (i, n)| place * n + i);
        self.data[place]
    }

    /// The element under an index of a shape that this one is broadcast to.
    pub fn broadcast_at(&self, index: &[usize]) -> i64 {
        let own: Vec<usize> = index[index.len() - self.dims.len()..]
            .iter()
            .zip(&self.dims)
            .map(|(&i, &n)| if n == 1 { 0 } else { i })
            .collect();
        self.at(&own)
    }

    pub fn max_abs(&self) -> i64 {
        self.data.iter().map(|v| v.abs()).max().unwrap_or(0)
    }

    pub fn map(&self, f: impl Fn(i64) -> i64) -> Host {
        Host { dims: self.dims.clone(), data: self.data.iter().map(|&v| f(v)).collect() }
    }

    /// Two operands broadcast to each other; `None` where they do not fit.
    pub fn zip(&self, other: &Host, f: impl Fn(i64, i64) -> i64) -> Option<Host> {
        let rank = self.dims.len().max(other.dims.len());
        let size = |dims: &[usize], d: usize| {
            if d + dims.len() < rank { 1 } else { dims[d + dims.len() - rank] }
        };
        let mut dims = Vec::new();
        for d in 0..rank {
            match (size(&self.dims, d), size(&other.dims, d)) {
                (a, b) if a == b => dims.push(a),
                (1, n) | (n, 1) => dims.push(n),
                _ => return None,
            }
        }
        Some(Host::build(&dims, |i| f(self.broadcast_at(i), other.broadcast_at(i))))
    }

    /// A fold over one dimension, which goes away; `f` is told the position.
    pub fn fold(&self, dim: usize, first: i64, f: impl Fn(i64, usize, i64) -> i64) -> Host {
        let mut dims = self.dims.clone();
        let n = dims.remove(dim);
        Host::build(&dims, |index| {
            let mut full = index.to_vec();
            full.insert(dim, 0);
            (0..n).fold(first, |acc, k| {
                full[dim] = k;
                f(acc, k, self.at(&full))
            })
        })
    }

    pub fn argmax(&self, dim: usize) -> Host {
        let mut dims = self.dims.clone();
        let n = dims.remove(dim);
        Host::build(&dims, |index| {
            let mut full = index.to_vec();
            full.insert(dim, 0);
            let values: Vec<i64> = (0..n)
                .map(|k| {
                    full[dim] = k;
                    self.at(&full)
                })
                .collect();
            let largest = *values.iter().max().expect("not empty");
            values.iter().position(|&v| v == largest).expect("it is there") as i64
        })
    }

    pub fn reshape(&self, dims: &[usize]) -> Host {
        Host { dims: dims.to_vec(), data: self.data.clone() }
    }

    pub fn permute(&self, order: &[usize]) -> Host {
        let dims: Vec<usize> = order.iter().map(|&d| self.dims[d]).collect();
        Host::build(&dims, |index| {
            let mut own = vec![0; index.len()];
            order.iter().zip(index).for_each(|(&d, &i)| own[d] = i);
            self.at(&own)
        })
    }

    /// Positions of one dimension, in the order given.
    pub fn pick(&self, dim: usize, positions: &[usize]) -> Host {
        let mut dims = self.dims.clone();
        dims[dim] = positions.len();
        Host::build(&dims, |index| {
            let mut own = index.to_vec();
            own[dim] = positions[own[dim]];
            self.at(&own)
        })
    }

    pub fn cat(&self, other: &Host, dim: usize) -> Host {
        let mut dims = self.dims.clone();
        let n = dims[dim];
        dims[dim] += other.dims[dim];
        Host::build(&dims, |index| {
            if index[dim] < n {
                return self.at(index);
            }
            let mut own = index.to_vec();
            own[dim] -= n;
            other.at(&own)
        })
    }

    /// Row `to` replaced by row `from`.
    pub fn copy_row(&self, to: usize, from: usize) -> Host {
        Host::build(&self.dims, |index| {
            let mut own = index.to_vec();
            if own[0] == to {
                own[0] = from;
            }
            self.at(&own)
        })
    }

    pub fn matmul(&self, other: &Host) -> Host {
        let (n, k, m) = (self.dims[0], self.dims[1], other.dims[1]);
        Host::build(&[n, m], |i| (0..k).map(|k| self.at(&[i[0], k]) * other.at(&[k, i[1]])).sum())
    }
}
