#include "report/html.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "report/analysis.h"
#include "report/html_data.h"
#include "report/page_assets.h"
#include "report/text.h"

namespace assay {
namespace {

std::optional<std::string> ReadScript(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return std::nullopt;
  return content.str();
}

// The text of Chart.js, or "" for plain SVG.
std::string ChartJs(const std::string& wanted) {
  const char* environment = std::getenv("ASSAY_CHARTJS");
  std::string path = wanted;
  if (path.empty() && environment != nullptr) path = environment;
  const bool named = !path.empty();
  if (!named) path = ASSAY_CHARTJS_PATH;
  if (path.empty() || path == "none") return "";
  const std::optional<std::string> script = ReadScript(path);
  if (!script && !named) return "";  // was there when this was built
  if (!script) BadInput(fmt::format("cannot read Chart.js from '{}'", path));
  if (script->find("</script") != std::string::npos || script->find("<!--") != std::string::npos) {
    BadInput(fmt::format("'{}' cannot be inlined: it contains '</script' or '<!--'", path));
  }
  return *script;
}

std::string TitleOf(const RunReport& report) {
  std::string title = "Assay report";
  for (const std::string& part : {report.run.id, MachineOf(report.run)}) {
    if (!part.empty()) title += fmt::format(" · {}", part);
  }
  return title;
}

std::string SummaryOf(const RunReport& report) {
  std::map<Status, std::int64_t> counts;
  for (const CaseResult& result : report.cases) ++counts[result.status];
  std::string text =
      fmt::format("{} cases", FormatCount(static_cast<std::int64_t>(report.cases.size())));
  for (const auto& [status, count] : counts) {
    text += fmt::format(", {} {}", FormatCount(count), StatusName(status));
  }
  return text + ".";
}

}  // namespace

std::string HtmlReport(const RunReport& report, const HtmlOptions& options) {
  const std::string title = HtmlEscape(TitleOf(report)), summary = HtmlEscape(SummaryOf(report));
  const std::string chartjs = ChartJs(options.chartjs);
  const std::string data = HtmlData(report, options.max_samples, options.against, options.margin);
  const std::map<std::string_view, std::string_view> values = {
      {"title", title}, {"summary", summary}, {"css", kPageCss},
      {"js", kPageJs},  {"chartjs", chartjs}, {"data", data}};
  std::string page;
  page.reserve(kPageHtml.size() + kPageCss.size() + kPageJs.size() + chartjs.size() + data.size());
  // One pass over the template: inserted text is never searched for placeholders.
  for (std::string_view rest = kPageHtml; !rest.empty();) {
    const std::size_t open = rest.find("{{");
    page += rest.substr(0, open);
    if (open == std::string_view::npos) break;
    const std::size_t close = rest.find("}}", open);
    page += values.at(rest.substr(open + 2, close - open - 2));
    rest.remove_prefix(close + 2);
  }
  return page;
}

}  // namespace assay
