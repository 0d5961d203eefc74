// A small plot as inline SVG: axes with ticks, points, lines, bands, bars, labels. No script.
#pragma once

#include <string>
#include <vector>

namespace assay::serving {

struct Scale {
  double low = 0, high = 1;
  bool log = false;
  double At(double value) const;  // 0..1, clamped
  std::vector<double> Ticks() const;
};

// Smallest scale that holds every finite value, with a margin; falls back to [0, 1].
Scale ScaleOf(const std::vector<double>& values, bool log);

class Svg {
 public:
  Svg(std::string title, std::string x_label, std::string y_label, Scale x, Scale y,
      int width = 560, int height = 320);

  void Point(double x, double y, const char* colour, const std::string& tip = "",
             double radius = 2);
  void Line(const std::vector<double>& x, const std::vector<double>& y, const char* colour,
            double width = 1.5);
  void Step(const std::vector<double>& x, const std::vector<double>& y, const char* colour);
  // Vertical or horizontal band over the whole plot.
  void BandY(double low, double high, const char* colour);
  void BandX(double low, double high, const char* colour);
  void Ribbon(const std::vector<double>& x, const std::vector<double>& low,
              const std::vector<double>& high, const char* colour);
  void RuleX(double x, const char* colour);
  void RuleY(double y, const char* colour);
  void IntervalX(double low, double value, double high, double y, const char* colour);
  void Rect(double x0, double x1, double y0, double y1, const char* colour, const std::string& tip);
  void Label(double x, double y, const std::string& text, const char* anchor = "start");
  // Category names along y, at 0, 1, 2, ...
  void NamesY(const std::vector<std::string>& names);

  std::string Html() const;  // <figure> with the SVG

 private:
  double X(double x) const;
  double Y(double y) const;

  std::string title_, x_label_, y_label_, body_;
  Scale x_, y_;
  int width_, height_;
  double left_ = 62;
  bool named_y_ = false;
};

}  // namespace assay::serving
