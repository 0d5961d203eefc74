// One offline page: rows as gzip of varint columns, tables from the same JSON that --json writes,
// and the viewer program. Nothing is fetched from anywhere.
#include <zlib.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "timeline/result.h"
#include "timeline/short_name.h"
#include "timeline/viewer_assets.h"

namespace assay::timeline {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream{};
  constexpr int kGzipWindow = 15 + 16;
  if (deflateInit2(&stream, 7, Z_DEFLATED, kGzipWindow, 9, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw Error(Fault::kInternal, "zlib cannot start");
  }
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int rc = text.size() > UINT32_MAX ? Z_BUF_ERROR : deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (rc != Z_STREAM_END) BadInput("the trace is too large for one page: give a smaller window");
  return out;
}

std::string Base64(const std::string& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve(bytes.size() * 4 / 3 + 4);
  for (std::size_t k = 0; k < bytes.size(); k += 3) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      word = word << 8 | (k + j < bytes.size() ? static_cast<unsigned char>(bytes[k + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += k + j > bytes.size() ? '=' : kDigits[word >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

void PutVarint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

// "</script" cannot occur inside a script element's JSON.
std::string InScript(std::string json) {
  for (std::size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) {
    json.replace(at, 2, "<\\/");
  }
  return json;
}

struct Rows {
  std::string columns;
  nlohmann::ordered_json header;
};

Rows EncodeRows(const Trace& trace) {
  Rows rows;
  const Scope scope = FullScope(trace);
  const Ns zero = scope.steps.empty() ? 0 : scope.steps.front().begin;
  std::vector<std::vector<const GpuRow*>> streams(trace.streams.size());
  for (const GpuRow& row : trace.gpu) streams[row.stream].push_back(&row);
  // A name of the page is a text with its category.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> ids;
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  nlohmann::ordered_json lanes = nlohmann::ordered_json::array();
  for (std::uint32_t device = 0; device < trace.devices.size(); ++device) {
    for (std::size_t k = 0; k < streams.size(); ++k) {
      if (trace.streams[k].device != device || streams[k].empty()) continue;
      Ns end = zero;
      for (const GpuRow* row : streams[k]) {
        const Ns gap = row->start - end;
        PutVarint(rows.columns, gap < 0 ? static_cast<std::uint64_t>(-gap) * 2 - 1
                                        : static_cast<std::uint64_t>(gap) * 2);
        end = std::max(row->start, row->end);
      }
      for (const GpuRow* row : streams[k]) {
        PutVarint(rows.columns, static_cast<std::uint64_t>(std::max<Ns>(0, row->end - row->start)));
      }
      for (const GpuRow* row : streams[k]) {
        const auto [it, added] =
            ids.try_emplace({row->name, row->category}, static_cast<std::uint32_t>(ids.size()));
        if (added) {
          names.push_back({{"n", trace.names[row->name]},
                           {"s", ShortName(trace.names[row->name])},
                           {"c", static_cast<int>(row->category)}});
        }
        PutVarint(rows.columns, it->second);
      }
      lanes.push_back({{"device", device},
                       {"label", "device " + trace.devices[device].label},
                       {"stream", trace.streams[k].id},
                       {"rows", streams[k].size()}});
    }
  }
  rows.header = {{"zero", zero},
                 {"length", scope.steps.empty() ? 0 : scope.steps.front().end - zero},
                 {"names", names},
                 {"lanes", lanes}};
  return rows;
}

constexpr const char* kTabs[][2] = {
    {"timeline", "Timeline"}, {"windows", "Windows"}, {"kernels", "Kernels"},  {"gaps", "Gaps"},
    {"host", "Host"},         {"ranges", "Ranges"},   {"coverage", "Coverage"}};

}  // namespace

std::string ResultToHtml(const TimelineResult& result) {
  const Rows rows = EncodeRows(result.trace);
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>Timeline</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n";
  page += kViewerCss;
  page +=
      "</style></head><body>\n<header><h1>Timeline</h1><p id=\"sources\"></p>"
      "<p id=\"counts\"></p></header>\n<nav>";
  for (const auto& [id, title] : kTabs) {
    page += std::string("<button data-tab=\"") + id + "\">" + title + "</button>";
  }
  page +=
      "<select id=\"scope\" aria-label=\"scope\"></select></nav>\n<main>\n"
      "<section id=\"timeline\"><div class=\"key\" id=\"key\"></div>"
      "<canvas id=\"canvas\"></canvas></section>\n";
  for (const auto& [id, title] : kTabs) {
    if (std::string(id) != "timeline")
      page += std::string("<section id=\"") + id + "\"></section>\n";
  }
  page += "</main><div id=\"tip\"></div>\n<script type=\"text/plain\" id=\"info\">";
  page += Base64(Gzip(ResultToJson(result)));
  page += "</script>\n<script type=\"application/json\" id=\"lanes\">";
  page += InScript(rows.header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  page += "</script>\n<script type=\"text/plain\" id=\"rows\">";
  page += Base64(Gzip(rows.columns));
  page += "</script>\n<script>\n";
  page += kViewerJs;
  page += "</script></body></html>\n";
  return page;
}

}  // namespace assay::timeline
