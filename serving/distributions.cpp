#include "serving/distributions.h"

#include <cmath>
#include <initializer_list>
#include <numbers>

namespace assay::serving {
namespace {

// Regularised incomplete beta I_x(a, b) by its continued fraction, DLMF 8.17.22, evaluated by the
// modified Lentz method (Thompson and Barnett, J. Comput. Phys. 64, 1986).
double IncompleteBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - IncompleteBeta(b, a, 1 - x);
  constexpr double kTiny = 1e-300;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x)) /
                       a;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  if (std::abs(d) < kTiny) d = kTiny;
  d = 1 / d;
  double f = d;
  for (int m = 1; m < 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (const double term : {even, odd}) {
      d = 1 + term * d;
      c = 1 + term / c;
      if (std::abs(d) < kTiny) d = kTiny;
      if (std::abs(c) < kTiny) c = kTiny;
      d = 1 / d;
      change = c * d;
      f *= change;
    }
    if (std::abs(change - 1) < 1e-15) break;
  }
  return front * f;
}

// Smallest x with cdf(x) >= p, by bisection of a bracket that is grown until it holds p.
template <class Cdf>
double Invert(double p, const Cdf& cdf) {
  double low = -1, high = 1;
  while (cdf(low) > p && low > -1e15) low *= 2;
  while (cdf(high) < p && high < 1e15) high *= 2;
  for (int step = 0; step < 200 && high - low > 1e-14 * (1 + std::abs(low)); ++step) {
    const double middle = 0.5 * (low + high);
    (cdf(middle) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

double NormalQuantile(double p) {
  if (p > 0.5) return -NormalQuantile(1 - p);
  return Invert(p, [](double x) { return NormalCdf(x); });
}

double StudentCdf(double t, double degrees) {
  // Abramowitz and Stegun 26.7.1 through I_x(v/2, 1/2), near t = 0 through its complement.
  const double square = t * t;
  const double tail =
      square < degrees ? 0.5 - 0.5 * IncompleteBeta(0.5, 0.5 * degrees, square / (degrees + square))
                       : 0.5 * IncompleteBeta(0.5 * degrees, 0.5, degrees / (degrees + square));
  return t > 0 ? 1 - tail : tail;
}

double StudentQuantile(double p, double degrees) {
  if (p > 0.5) return -StudentQuantile(1 - p, degrees);
  return Invert(p, [degrees](double x) { return StudentCdf(x, degrees); });
}

}  // namespace assay::serving
