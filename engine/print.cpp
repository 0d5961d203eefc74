// A step program as text, JSON, picture and number.
#include <algorithm>
#include <map>
#include <sstream>

#include "engine/program.h"

namespace assay::engine {

const char* OpName(Op op) {
  constexpr const char* kNames[] = {
      "mix",       "mix_in",      "kda_in",      "kda",         "kda_out", "dsa_in",
      "append",    "query",       "index_query", "index_score", "select",  "attend",
      "values",    "dsa_out",     "dense_up",    "dense_down",  "router",  "route",
      "shared_up", "shared_down", "expert_up",   "expert_down", "end",     "head",
      "mtp_embed", "mtp_project", "mtp_residual"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Op::kCount), "one name per op");
  return kNames[static_cast<std::size_t>(op)];
}

const char* BufName(Buf buffer) {
  constexpr const char* kNames[] = {
      "streams", "partials",      "hyper",       "input",      "projected",   "head_scale",
      "gate",    "values",        "output",      "query",      "index_query", "index_weight",
      "scores",  "selected",      "chunk_stats", "chunk_sums", "activated",   "router_logits",
      "routes",  "route_weights", "expert_act",  "expert_out", "mtp_input",   "hidden",
      "logits",  "latents",       "ring",        "pools",      "kda_state",   "conv_window"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Buf::kCount), "one name per buffer");
  return kNames[static_cast<std::size_t>(buffer)];
}

const char* ElementName(Element element) {
  constexpr const char* kNames[] = {"bf16", "fp32", "i32", "e4m3", "state"};
  return kNames[static_cast<std::size_t>(element)];
}

const char* CommitModeName(CommitMode mode) {
  return mode == CommitMode::kReplay ? "replay" : "scratch";
}

std::string DescribeTask(const Program& program, std::size_t index) {
  const Task& task = program.tasks[index];
  std::ostringstream text;
  text << "L" << task.layer << " " << OpName(task.op);
  if (task.row >= 0) {
    text << " row " << task.row;
  } else if (task.request >= 0) {
    text << " request " << task.request;
  }
  if (task.part > 0) text << " part " << task.part;
  if (task.index > 0) text << " #" << task.index;
  if (task.n1 > 0) text << " [" << task.n0 << "," << task.n1 << ")";
  return text.str();
}

namespace {

// Neighbouring tasks of one op and layer.
struct Stage {
  Op op = Op::kCount;
  int layer = 0, part = 0;
  std::int64_t tasks = 0;
  std::vector<Buf> reads, writes;
  std::vector<std::string> waits;
};

template <class T>
void AddOnce(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// Counters of rows, requests and slots are shown as one family.
std::string Family(std::string name) {
  while (!name.empty() && (std::isdigit(static_cast<unsigned char>(name.back())) != 0))
    name.pop_back();
  return !name.empty() && name.back() == ' ' ? name + "*" : name;
}

bool Splits(Op op) { return op == Op::kMix || op == Op::kMixIn || op == Op::kMtpResidual; }

std::vector<Stage> Stages(const Program& program) {
  std::vector<Stage> stages;
  for (const Task& task : program.tasks) {
    const int part = Splits(task.op) ? task.part : 0;
    // Ops alternate inside attention (per row) and experts (per slot): look back within the layer.
    Stage* stage = nullptr;
    for (auto it = stages.rbegin(); it != stages.rend() && it->layer == task.layer; ++it) {
      if (it->op == task.op && it->part == part) stage = &*it;
    }
    if (stage == nullptr)
      stage = &stages.emplace_back(Stage{task.op, task.layer, part, 0, {}, {}, {}});
    ++stage->tasks;
    for (const Region& region : task.reads) AddOnce(stage->reads, region.buffer);
    for (const Region& region : task.writes) AddOnce(stage->writes, region.buffer);
    for (const Wait& wait : task.waits) {
      AddOnce(stage->waits, Family(program.counters[static_cast<std::size_t>(wait.counter)].name));
    }
  }
  return stages;
}

std::string Names(const std::vector<Buf>& buffers) {
  std::string text;
  for (const Buf buffer : buffers) text += (text.empty() ? "" : " ") + std::string(BufName(buffer));
  return text.empty() ? "-" : text;
}

std::string Hex(std::uint64_t value) {
  std::ostringstream text;
  text << std::hex << value;
  return text.str();
}

}  // namespace

std::string ProgramText(const Program& program, int layers) {
  std::ostringstream text;
  text << "step program " << Hex(ProgramHash(program)) << ": model " << program.model.name << ", "
       << program.shape.requests << " requests x " << program.shape.rows_per_request
       << " rows, context " << program.shape.context << "\n"
       << program.tasks.size() << " tasks, " << program.counters.size() << " counters\n\nbuffers\n";
  for (std::size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.rows == 0 || buffer.columns == 0) continue;
    text << "  " << BufName(static_cast<Buf>(b)) << " " << ElementName(buffer.element) << " ["
         << buffer.rows << "," << buffer.columns << "]\n";
  }
  int shown = 0, last = -1;
  for (const Stage& stage : Stages(program)) {
    if (stage.layer != last) {
      last = stage.layer;
      const bool ends = last >= program.model.trunk_layers() - 1;
      if (++shown > layers && !ends) {
        if (shown == layers + 1) text << "\n(layers up to the last one are alike)\n";
        continue;
      }
      text << "\nlayer " << last << "\n";
    } else if (shown > layers && last < program.model.trunk_layers() - 1) {
      continue;
    }
    text << "  " << OpName(stage.op) << " x " << stage.tasks << "\n      " << Names(stage.reads)
         << " -> " << Names(stage.writes) << "\n";
    for (const std::string& wait : stage.waits) text << "      waits " << wait << "\n";
  }
  return text.str();
}

std::string ProgramJson(const Program& program) {
  std::ostringstream text;
  const auto regions = [&](const char* key, const std::vector<Region>& list) {
    text << ",\"" << key << "\":[";
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Region& r = list[i];
      text << (i > 0 ? "," : "") << "[\"" << BufName(r.buffer) << "\"," << r.layer << "," << r.row0
           << "," << r.row1 << "," << r.column0 << "," << r.column1 << "]";
    }
    text << "]";
  };
  text << "{\"hash\":\"" << Hex(ProgramHash(program)) << "\",\"model\":\"" << program.model.name
       << "\",\"requests\":" << program.shape.requests
       << ",\"rows_per_request\":" << program.shape.rows_per_request
       << ",\"context\":" << program.shape.context << ",\"workers\":" << program.shape.workers
       << ",\"counters\":[";
  for (std::size_t c = 0; c < program.counters.size(); ++c) {
    text << (c > 0 ? "," : "") << "{\"name\":\"" << program.counters[c].name
         << "\",\"signals\":" << program.counters[c].signals << "}";
  }
  text << "],\"tasks\":[";
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    const Task& task = program.tasks[t];
    text << (t > 0 ? ",\n" : "\n") << "{\"op\":\"" << OpName(task.op)
         << "\",\"layer\":" << task.layer << ",\"part\":" << task.part << ",\"row\":" << task.row
         << ",\"request\":" << task.request << ",\"index\":" << task.index << ",\"n\":[" << task.n0
         << "," << task.n1 << "],\"worker\":" << task.worker << ",\"waits\":[";
    for (std::size_t i = 0; i < task.waits.size(); ++i) {
      text << (i > 0 ? "," : "") << "[" << task.waits[i].counter << "," << task.waits[i].target
           << "]";
    }
    text << "],\"signals\":[";
    for (std::size_t i = 0; i < task.signals.size(); ++i) {
      text << (i > 0 ? "," : "") << task.signals[i];
    }
    text << "]";
    regions("reads", task.reads);
    regions("writes", task.writes);
    text << "}";
  }
  text << "\n]}\n";
  return text.str();
}

std::uint64_t ProgramHash(const Program& program) {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a over the numbers that define the program
  const auto add = [&](std::int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<std::uint64_t>(value) >> (8 * byte) & 255)) * 0x100000001B3u;
    }
  };
  const auto add_regions = [&](const std::vector<Region>& regions) {
    for (const Region& r : regions) {
      for (const std::int64_t value :
           {static_cast<std::int64_t>(r.buffer), r.layer, r.row0, r.row1, r.column0, r.column1}) {
        add(value);
      }
    }
  };
  for (const Task& task : program.tasks) {
    for (const std::int64_t value :
         {static_cast<std::int64_t>(task.op), std::int64_t{task.layer}, std::int64_t{task.part},
          std::int64_t{task.row}, std::int64_t{task.request}, std::int64_t{task.index},
          std::int64_t{task.n0}, std::int64_t{task.n1}, std::int64_t{task.worker}}) {
      add(value);
    }
    add_regions(task.reads);
    add_regions(task.writes);
    for (const Wait& wait : task.waits) add(wait.counter), add(wait.target);
    for (const int counter : task.signals) add(counter);
  }
  return hash;
}

namespace {

constexpr int kBoxWidth = 150, kBoxHeight = 38, kColumnGap = 22, kRowGap = 26, kTop = 46;

// Stages of one layer placed by depth: one more than the deepest stage they wait for.
struct Placed {
  const Stage* stage = nullptr;
  int depth = 0, column = 0;
  int x() const { return 20 + column * (kBoxWidth + kColumnGap); }
  int y() const { return kTop + depth * (kBoxHeight + kRowGap); }
};

// Which stage signals a family of counters.
struct Signaller {
  Op op = Op::kCount;
  int part = 0;
};
std::map<std::string, Signaller> Signallers(const Program& program) {
  std::map<std::string, Signaller> map;
  for (const Task& task : program.tasks) {
    for (const int counter : task.signals) {
      map[Family(program.counters[static_cast<std::size_t>(counter)].name)] = {
          task.op, Splits(task.op) ? task.part : 0};
    }
  }
  return map;
}

std::string LayerSvg(const std::vector<Stage>& stages,
                     const std::map<std::string, Signaller>& signallers, int left,
                     const std::string& title, int* height) {
  std::vector<Placed> placed;
  placed.reserve(stages.size());
  std::map<int, int> used;
  std::ostringstream svg;
  svg << "<g transform='translate(" << left << ",0)'><text x='20' y='28' class='title'>" << title
      << "</text>";
  for (const Stage& stage : stages) {
    Placed box{&stage, 0, 0};
    std::vector<const Placed*> sources;
    for (const std::string& wait : stage.waits) {
      const Signaller from = signallers.at(wait);
      for (const Placed& source : placed) {  // a stage of another layer is not in the picture
        if (source.stage->op != from.op || source.stage->part != from.part) continue;
        sources.push_back(&source);
        box.depth = std::max(box.depth, source.depth + 1);
      }
    }
    box.column = used[box.depth]++;
    for (const Placed* source : sources) {
      const int x0 = source->x() + kBoxWidth / 2, y0 = source->y() + kBoxHeight;
      const int x1 = box.x() + kBoxWidth / 2, y1 = box.y();
      svg << "<path class='edge' d='M" << x0 << "," << y0 << " C" << x0 << "," << y0 + kRowGap
          << " " << x1 << "," << y1 - kRowGap << " " << x1 << "," << y1 << "'/>";
    }
    placed.push_back(box);
    *height = std::max(*height, box.y() + kBoxHeight + 20);
  }
  for (const Placed& box : placed) {
    svg << "<rect x='" << box.x() << "' y='" << box.y() << "' width='" << kBoxWidth << "' height='"
        << kBoxHeight << "' rx='5'/><text x='" << box.x() + 10 << "' y='" << box.y() + 16 << "'>"
        << OpName(box.stage->op) << " &#215; " << box.stage->tasks
        << "</text><text class='small' x='" << box.x() + 10 << "' y='" << box.y() + 31
        << "'>&#8594; " << Names({box.stage->writes.begin(), box.stage->writes.begin() + 1})
        << "</text>";
  }
  svg << "</g>";
  return svg.str();
}

}  // namespace

std::string ProgramSvg(const Program& program) {
  const std::vector<Stage> stages = Stages(program);
  const auto signallers = Signallers(program);
  const auto of_layer = [&](std::int64_t layer) {
    std::vector<Stage> list;
    for (const Stage& stage : stages) {
      if (stage.layer == layer && stage.op != Op::kEnd && stage.op != Op::kHead &&
          !(stage.op == Op::kMix && stage.part == 2)) {
        list.push_back(stage);
      }
    }
    return list;
  };
  std::int64_t kda = -1, dsa = -1;
  for (std::int64_t layer = program.model.trunk_layers() - 1; layer >= 0; --layer) {
    if (program.model.dense(layer)) continue;
    (program.model.kind(layer) == LayerKind::kKda ? kda : dsa) = layer;
  }
  int height = 0;
  std::string body;
  constexpr int kLayerWidth = 3 * (kBoxWidth + kColumnGap) + 40;
  if (kda >= 0) body += LayerSvg(of_layer(kda), signallers, 0, "a KDA layer with experts", &height);
  if (dsa >= 0) {
    body += LayerSvg(of_layer(dsa), signallers, kLayerWidth, "a DSA layer with experts", &height);
  }
  return "<svg xmlns='http://www.w3.org/2000/svg' width='" + std::to_string(2 * kLayerWidth) +
         "' height='" + std::to_string(height) +
         "'><style>text{font:13px sans-serif;fill:#222}.small{font-size:11px;fill:#555}"
         ".title{font-size:15px;font-weight:bold}rect{fill:#eef3fa;stroke:#5b7fb0}"
         ".edge{fill:none;stroke:#999}</style><rect width='100%' height='100%' "
         "style='fill:#fff;stroke:none'/>" +
         body + "</svg>\n";
}

}  // namespace assay::engine
