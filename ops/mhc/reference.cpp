// The truth of mhc: the formulas of README.md in fp64, row by row.
#include <algorithm>
#include <cmath>

#include "ops/mhc/spec.h"

namespace assay::mhc {
namespace {

using Matrix = double[kStreams][kStreams];

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Sum(const std::vector<double>& terms, SumOrder order) {
  double sum = 0;
  if (order == SumOrder::kForward) {
    for (auto it = terms.begin(); it != terms.end(); ++it) sum += *it;
  } else {
    for (auto it = terms.rbegin(); it != terms.rend(); ++it) sum += *it;
  }
  return sum;
}

double RootMeanSquare(const std::vector<double>& x, SumOrder order) {
  std::vector<double> squares;
  for (const double value : x) squares.push_back(value * value);
  return std::sqrt(Sum(squares, order) / static_cast<double>(x.size()) + double{kNormEps});
}

void DivideRows(Matrix& c) {
  for (auto& row : c) {
    const double sum = row[0] + row[1] + row[2] + row[3] + double{kMixEps};
    for (double& value : row) value /= sum;
  }
}

void DivideColumns(Matrix& c) {
  for (int k = 0; k < kStreams; ++k) {
    const double sum = c[0][k] + c[1][k] + c[2][k] + c[3][k] + double{kMixEps};
    for (auto& row : c) row[k] /= sum;
  }
}

// Softmax of the rows, then columns, rows, columns, ... 20 times columns in all.
void Sinkhorn(Matrix& c) {
  for (auto& row : c) {
    const double top = *std::max_element(row, row + kStreams);
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value - top);
    for (double& value : row) value = value / sum + double{kMixEps};
  }
  DivideColumns(c);
  for (int round = 1; round < kSinkhornRounds; ++round) {
    DivideRows(c);
    DivideColumns(c);
  }
}

// The 24 mixes of one row: F flat(R) / rms(flat(R)), times their scale, plus their base.
std::vector<double> Mixes(const Bundle& inputs, const std::vector<double>& flat, SumOrder order) {
  const double rms = RootMeanSquare(flat, order);
  std::vector<double> mixes, products(flat.size());
  for (std::size_t o = 0; o < kMixes; ++o) {
    const float* f = inputs["fn"].as<float>() + o * flat.size();
    for (std::size_t i = 0; i < flat.size(); ++i) products[i] = f[i] * flat[i];
    const float scale = inputs["scale"].as<float>()[o < 4 ? 0 : o < 8 ? 1 : 2];
    mixes.push_back(Sum(products, order) / rms * scale + inputs["base"].as<float>()[o]);
  }
  return mixes;
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const auto n = static_cast<std::size_t>(problem.axis("N"));
  ExpectedRows u, post, comb;
  for (const std::int64_t row : rows[0]) {
    std::vector<double> flat, x(n), magnitude(n);
    const bf16* streams = inputs["streams"].as<bf16>() + static_cast<std::size_t>(row) * 4 * n;
    for (std::size_t i = 0; i < 4 * n; ++i) flat.push_back(ToFloat(streams[i]));
    const std::vector<double> mixes = Mixes(inputs, flat, order);
    for (std::size_t j = 0; j < 4; ++j) {
      const double pre = Sigmoid(mixes[j]) + double{kMixEps};
      for (std::size_t i = 0; i < n; ++i) {
        x[i] += pre * flat[j * n + i];
        magnitude[i] += std::abs(pre * flat[j * n + i]);
      }
      post.value.push_back(2 * Sigmoid(mixes[4 + j]));
    }
    const double rms = RootMeanSquare(x, order);
    for (std::size_t i = 0; i < n; ++i) {
      const double weight = ToFloat(inputs["weight"].as<bf16>()[i]);
      u.value.push_back(x[i] / rms * weight);
      u.scale.push_back(magnitude[i] / rms * std::abs(weight));
    }
    Matrix c;
    std::copy(mixes.begin() + 8, mixes.end(), &c[0][0]);
    Sinkhorn(c);
    comb.value.insert(comb.value.end(), &c[0][0], &c[0][0] + 16);
  }
  return {std::move(u), std::move(post), std::move(comb)};
}

}  // namespace assay::mhc
