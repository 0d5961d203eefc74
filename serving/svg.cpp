#include "serving/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/text.h"

namespace assay::serving {
namespace {

constexpr double kRight = 14, kTop = 26, kBottom = 44;

std::string TickText(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e5 || size < 1e-3) return fmt::format("{:.0e}", value);
  return fmt::format("{:.4g}", value);
}

}  // namespace

double Scale::At(double value) const {
  const double position = log ? std::log(std::max(value, 1e-300) / low) / std::log(high / low)
                              : (value - low) / (high - low);
  return std::isfinite(position) ? std::clamp(position, -0.02, 1.02) : 0;
}

std::vector<double> Scale::Ticks() const {
  std::vector<double> ticks;
  if (log && high / low > 4) {
    for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
      for (const double step : {1.0, 2.0, 5.0}) {
        const double tick = decade * step;
        if (tick >= low && tick <= high) ticks.push_back(tick);
      }
    }
    if (ticks.size() > 8) {
      std::erase_if(ticks, [](double t) {
        const double exponent = std::log10(t);
        return std::abs(exponent - std::round(exponent)) > 1e-9;
      });
    }
    return ticks;
  }
  const double rough = (high - low) / 5;
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double step = decade;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (step < rough) step = decade * factor;
  }
  for (double tick = std::ceil(low / step) * step; tick <= high + 1e-9 * step; tick += step) {
    ticks.push_back(std::abs(tick) < 1e-9 * step ? 0 : tick);
  }
  return ticks;
}

Scale ScaleOf(const std::vector<double>& values, bool log) {
  double low = 0, high = 0;
  bool any = false;
  for (const double v : values) {
    if (!std::isfinite(v) || (log && v <= 0)) continue;
    low = any ? std::min(low, v) : v;
    high = any ? std::max(high, v) : v;
    any = true;
  }
  if (!any) return {log ? 0.1 : 0.0, 1, log};
  if (log) {
    const double margin = std::max(1.02, std::pow(high / low, 0.04));
    return {low / margin, high * margin, true};
  }
  const double margin = std::max(0.04 * (high - low), 1e-9 * std::max(1.0, std::abs(high)));
  return {low - margin, high + margin, false};
}

Svg::Svg(std::string title, std::string x_label, std::string y_label, Scale x, Scale y, int width,
         int height)
    : title_(std::move(title)),
      x_label_(std::move(x_label)),
      y_label_(std::move(y_label)),
      x_(x),
      y_(y),
      width_(width),
      height_(height) {}

double Svg::X(double x) const { return left_ + x_.At(x) * (width_ - left_ - kRight); }
double Svg::Y(double y) const { return height_ - kBottom - y_.At(y) * (height_ - kTop - kBottom); }

void Svg::Point(double x, double y, const char* colour, const std::string& tip, double radius) {
  body_ += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" fill-opacity=\".55\"", X(x),
      Y(y), radius, colour);
  body_ += tip.empty() ? "/>" : fmt::format("><title>{}</title></circle>", HtmlEscape(tip));
}

void Svg::Line(const std::vector<double>& x, const std::vector<double>& y, const char* colour,
               double width) {
  body_ += "<polyline fill=\"none\" points=\"";
  for (std::size_t i = 0; i < x.size(); ++i)
    body_ += fmt::format("{:.1f},{:.1f} ", X(x[i]), Y(y[i]));
  body_ += fmt::format("\" stroke=\"{}\" stroke-width=\"{}\"/>", colour, width);
}

void Svg::Step(const std::vector<double>& x, const std::vector<double>& y, const char* colour) {
  std::vector<double> sx, sy;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i > 0) {
      sx.push_back(x[i]);
      sy.push_back(y[i - 1]);
    }
    sx.push_back(x[i]);
    sy.push_back(y[i]);
  }
  Line(sx, sy, colour);
}

void Svg::BandY(double low, double high, const char* colour) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>", left_,
      Y(high), width_ - left_ - kRight, Y(low) - Y(high), colour);
}

void Svg::BandX(double low, double high, const char* colour) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>", X(low),
      kTop, X(high) - X(low), height_ - kTop - kBottom, colour);
}

void Svg::Ribbon(const std::vector<double>& x, const std::vector<double>& low,
                 const std::vector<double>& high, const char* colour) {
  body_ += "<polygon points=\"";
  for (std::size_t i = 0; i < x.size(); ++i)
    body_ += fmt::format("{:.1f},{:.1f} ", X(x[i]), Y(high[i]));
  for (std::size_t i = x.size(); i-- > 0;)
    body_ += fmt::format("{:.1f},{:.1f} ", X(x[i]), Y(low[i]));
  body_ += fmt::format("\" fill=\"{}\"/>", colour);
}

void Svg::RuleX(double x, const char* colour) {
  body_ += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"{3}\"/>",
                       X(x), kTop, height_ - kBottom, colour);
}

void Svg::RuleY(double y, const char* colour) {
  body_ += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>",
                       left_, width_ - kRight, Y(y), colour);
}

void Svg::IntervalX(double low, double value, double high, double y, const char* colour) {
  body_ += fmt::format(
      "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-width=\"2\"/>",
      X(low), X(high), Y(y), Y(y), colour);
  body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>", X(value),
                       Y(y), colour);
}

void Svg::Rect(double x0, double x1, double y0, double y1, const char* colour,
               const std::string& tip) {
  body_ += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "fill=\"{}\"><title>{}</title></rect>",
      X(x0), Y(y1), std::max(0.5, X(x1) - X(x0)), std::max(0.5, Y(y0) - Y(y1)), colour,
      HtmlEscape(tip));
}

void Svg::Label(double x, double y, const std::string& text, const char* anchor) {
  body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", X(x), Y(y),
                       anchor, HtmlEscape(text));
}

void Svg::NamesY(const std::vector<std::string>& names) {
  left_ = 210;
  named_y_ = true;
  for (std::size_t i = 0; i < names.size(); ++i) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", left_ - 8,
                         Y(static_cast<double>(i)) + 4, HtmlEscape(names[i]));
  }
}

std::string Svg::Html() const {
  std::string axes = fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"#bbb\"/>",
      left_, kTop, width_ - left_ - kRight, height_ - kTop - kBottom);
  for (const double tick : x_.Ticks()) {
    axes += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#999\"/>",
        X(tick), height_ - kBottom, height_ - kBottom + 4);
    axes += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", X(tick),
                        height_ - kBottom + 16, TickText(tick));
  }
  for (const double tick : named_y_ ? std::vector<double>{} : y_.Ticks()) {
    axes += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#999\"/>",
        left_ - 4, left_, Y(tick));
    axes += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", left_ - 6,
                        Y(tick) + 4, TickText(tick));
  }
  axes += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                      left_ + 0.5 * (width_ - left_ - kRight), height_ - 8, HtmlEscape(x_label_));
  if (!y_label_.empty()) {
    axes += fmt::format(
        "<text transform=\"translate(13,{:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        0.5 * height_, HtmlEscape(y_label_));
  }
  return fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" "
      "aria-label=\"{}\">{}{}</svg></figure>\n",
      HtmlEscape(title_), width_, height_, width_, HtmlEscape(title_), body_, axes);
}

}  // namespace assay::serving
