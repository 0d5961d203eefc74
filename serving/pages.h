// What a comparison looks like: a terminal page, JSON, Markdown for a pull request, one HTML file.
#pragma once

#include <string>
#include <vector>

#include "serving/compare.h"
#include "serving/plan.h"

namespace assay::serving {

// At most 40 lines of at most 100 columns.
std::string TextPage(const Comparison& comparison);
// Stable key order, full precision, units in names. See docs/serving-ab.md.
std::string JsonPage(const Comparison& comparison);
// For a pull request comment.
std::string MarkdownPage(const Comparison& comparison);
// One offline file: inline SVG, no script, no URL. `command` is printed for reproduction.
std::string HtmlPage(const Comparison& comparison, const CompareInput& input,
                     const std::string& command);

// What one run holds: inputs, level, facts, metrics, identities, notes. At most 100 columns.
std::string InspectPage(const Run& run);
std::string PlanPage(const Plan& plan);

// "+24.7 %" of a log effect.
std::string EffectPercent(double effect);
std::string EffectPercent(double effect, const Interval& interval);
// Cuts a line to `width` characters with an ellipsis; breaks text into lines.
std::string Shorten(const std::string& text, std::size_t width);

// The checklist of the review protocol, answered from the comparison: id, yes / no / n.a. / open,
// evidence.
struct ChecklistLine {
  std::string id, question, answer, evidence;
};
std::vector<ChecklistLine> ReviewChecklist(const Comparison& comparison);

}  // namespace assay::serving
