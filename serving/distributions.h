// Normal and Student-t distribution functions and their inverses.
#pragma once

namespace assay::serving {

double NormalCdf(double x);
double NormalQuantile(double p);  // 0 < p < 1
double StudentCdf(double t, double degrees);
// Two-sided critical values are StudentQuantile(0.975, k - 1): 12.7, 4.30, 3.18, 2.78 for k = 2..5.
double StudentQuantile(double p, double degrees);

}  // namespace assay::serving
