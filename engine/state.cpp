#include "engine/state.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace assay::engine {
namespace {

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class T>
void Resize(std::vector<T>& memory, std::int64_t count) {
  memory.resize(static_cast<std::size_t>(count));
}

template <class T>
std::span<const std::byte> Bytes(const T* data, std::int64_t count) {
  return std::as_bytes(std::span(data, static_cast<std::size_t>(count)));
}

template <class T>
void Poison(T* data, std::int64_t count) {
  std::memset(static_cast<void*>(data), 0xFF, static_cast<std::size_t>(count) * sizeof(T));
}

}  // namespace

int PagePool::Take() {
  const int page = free_.back();
  free_.pop_back();
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::Release(int page) {
  if (--references_[static_cast<std::size_t>(page)] == 0) free_.push_back(page);
}

State::State(const ModelConfig& model, const StateOptions& options)
    : model_(model),
      options_(options),
      state_floats_(model.kda_channels() * model.kda_dim),
      log_floats_(3 * model.kda_channels()),
      channels_(3 * model.kda_channels()),
      pool_page_bytes_(kPageSlots * (model.index_dim + 4)),
      token_pool_(CeilDiv(options.tokens, kPageSlots) + options.slots),
      pool_pool_(CeilDiv(options.tokens, kPoolPageTokens) + options.slots),
      requests_(static_cast<std::size_t>(options.slots)) {
  const std::int64_t slots = options.slots, rows = options.rows_per_request;
  if (slots < 1 || rows < 1 || options.tokens < 1) {
    BadInput("a state for " + std::to_string(slots) + " requests, " + std::to_string(rows) +
             " rows and " + std::to_string(options.tokens) + " tokens: all must be positive");
  }
  const std::int64_t kda = model.kda_layers() * slots, dsa = model.dsa_layers();
  Resize(latents_, dsa * token_pool_.pages() * kPageSlots * model.kv_lora);
  Resize(pools_, dsa * pool_pool_.pages() * pool_page_bytes_);
  Resize(ring_, dsa * slots * ring_width() * 2 * model.index_dim);
  Resize(window_, 2 * kda * (kConvWidth - 1) * channels_);
  Resize(inputs_, 2 * kda * rows * channels_);
  if (options.commit == CommitMode::kReplay) {
    Resize(base_, 2 * kda * state_floats_);
    Resize(log_, 2 * kda * rows * log_floats_);
  } else {
    Resize(base_, kda * state_floats_);
    Resize(scratch_, kda * rows * state_floats_);
  }
}

std::size_t State::bytes() const {
  return 2 * (latents_.size() + ring_.size() + window_.size() + inputs_.size()) + pools_.size() +
         4 * (base_.size() + scratch_.size() + log_.size());
}

State::Request& State::request(int slot) {
  if (slot < 0 || slot >= options_.slots || !requests_[static_cast<std::size_t>(slot)].live) {
    throw Error(Fault::kInternal, "request slot " + std::to_string(slot) + " is not in use");
  }
  return requests_[static_cast<std::size_t>(slot)];
}

// ---- requests ----

int State::Create() {
  const auto free = std::find_if(requests_.begin(), requests_.end(),
                                 [](const Request& request) { return !request.live; });
  if (free == requests_.end()) {
    BadInput("all " + std::to_string(options_.slots) + " request slots are in use");
  }
  *free = Request{};
  free->live = true;
  const int slot = static_cast<int>(free - requests_.begin());
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    std::fill_n(Base(0, kda, slot), state_floats_, 0.0f);
    std::fill_n(Window(0, kda, slot, 0), (kConvWidth - 1) * channels_, bf16{});
  }
  return slot;
}

void State::Free(int slot) {
  Request& freed = request(slot);
  for (const int page : freed.token_pages) token_pool_.Release(page);
  for (const int page : freed.pool_pages) pool_pool_.Release(page);
  freed = Request{};
}

int State::Fork(int slot, int rows) {
  request(slot);  // checks
  const int copy = Create();
  Request& from = request(slot);
  Request& to = request(copy);
  to.length = from.length + rows;
  to.token_pages.assign(from.token_pages.begin(),
                        from.token_pages.begin() + CeilDiv(to.length, kPageSlots));
  to.pool_pages.assign(from.pool_pages.begin(),
                       from.pool_pages.begin() + CeilDiv(to.length, kPoolPageTokens));
  for (const int page : to.token_pages) token_pool_.Share(page);
  for (const int page : to.pool_pages) pool_pool_.Share(page);
  const std::int64_t ring = ring_width() * 2 * model_.index_dim;
  for (std::int64_t dsa = 0; dsa < model_.dsa_layers(); ++dsa) {
    std::copy_n(Ring(dsa, slot, 0), ring, Ring(dsa, copy, 0));
  }
  CopyRecurrent(slot, copy, rows);
  return copy;
}

void State::CopyRecurrent(int from, int to, int rows) {
  const Request& source = request(from);
  const bool replay = options_.commit == CommitMode::kReplay;
  const int half = replay && rows > 0 ? 1 - source.half : source.half;
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    const float* base =
        !replay && rows > 0 ? KdaScratch(kda, from, rows - 1, 0) : Base(half, kda, from);
    std::copy_n(base, state_floats_, Base(0, kda, to));
    std::copy_n(Window(half, kda, from, 0), (kConvWidth - 1) * channels_, Window(0, kda, to, 0));
    std::copy_n(Inputs(half, kda, from, 0), options_.rows_per_request * channels_,
                Inputs(0, kda, to, 0));
    if (replay) {
      std::copy_n(LogRow(half, kda, from, 0), options_.rows_per_request * log_floats_,
                  LogRow(0, kda, to, 0));
    }
  }
  if (replay) {
    request(to).pending = rows > 0 ? rows : source.pending;
  } else if (rows > 0) {
    AdvanceWindow(to, rows);
  }
}

std::int64_t State::MissingPages(const Request& request, bool tokens, std::int64_t begin,
                                 std::int64_t end) const {
  const std::int64_t page_tokens = tokens ? kPageSlots : kPoolPageTokens;
  const std::vector<int>& table = tokens ? request.token_pages : request.pool_pages;
  const PagePool& pool = tokens ? token_pool_ : pool_pool_;
  std::int64_t missing = 0;
  for (std::int64_t i = begin / page_tokens; i < CeilDiv(end, page_tokens); ++i) {
    const auto index = static_cast<std::size_t>(i);
    missing += index >= table.size() || pool.shared(table[index]);
  }
  return missing;
}

void State::OwnPages(Request& request, bool tokens, std::int64_t begin, std::int64_t end) {
  const std::int64_t page_tokens = tokens ? kPageSlots : kPoolPageTokens;
  std::vector<int>& table = tokens ? request.token_pages : request.pool_pages;
  PagePool& pool = tokens ? token_pool_ : pool_pool_;
  for (std::int64_t i = begin / page_tokens; i < CeilDiv(end, page_tokens); ++i) {
    const auto index = static_cast<std::size_t>(i);
    if (index >= table.size()) {
      table.push_back(pool.Take());
    } else if (pool.shared(table[index])) {  // copy on write: another request reads its head
      const int own = pool.Take();
      CopyPage(tokens, table[index], own);
      pool.Release(table[index]);
      table[index] = own;
    }
  }
}

void State::CopyPage(bool tokens, int from, int to) {
  const std::int64_t pages = tokens ? token_pool_.pages() : pool_pool_.pages();
  for (std::int64_t dsa = 0; dsa < model_.dsa_layers(); ++dsa) {
    const std::int64_t source = dsa * pages + from, target = dsa * pages + to;
    if (tokens) {
      const std::int64_t size = kPageSlots * model_.kv_lora;
      std::copy_n(latents_.begin() + source * size, size, latents_.begin() + target * size);
    } else {
      std::copy_n(pools_.begin() + source * pool_page_bytes_, pool_page_bytes_,
                  pools_.begin() + target * pool_page_bytes_);
    }
  }
}

bool State::HasSlot() const {
  return std::any_of(requests_.begin(), requests_.end(),
                     [](const Request& request) { return !request.live; });
}

bool State::HasRoom(int slot, std::int64_t rows, std::optional<std::int64_t> from) const {
  const Request& grown = request(slot);
  const std::int64_t begin = from.value_or(grown.length), end = grown.length + rows;
  return MissingPages(grown, true, begin, end) <= token_pool_.available() &&
         MissingPages(grown, false, begin, end) <= pool_pool_.available();
}

void State::Reserve(int slot, std::int64_t rows, std::optional<std::int64_t> from) {
  Request& grown = request(slot);
  const std::int64_t length = grown.length + rows;
  if (length > model_.max_positions) {
    BadInput("request " + std::to_string(slot) + " would reach " + std::to_string(length) +
             " tokens, and the model ends at " + std::to_string(model_.max_positions));
  }
  if (!HasRoom(slot, rows, from)) {
    BadInput("out of cache pages: request " + std::to_string(slot) + " needs room for " +
             std::to_string(length) + " tokens; the cache holds " +
             std::to_string(options_.tokens) + " tokens of all requests together");
  }
  OwnPages(grown, true, from.value_or(grown.length), length);
  OwnPages(grown, false, from.value_or(grown.length), length);
}

void State::Commit(int slot, int accepted) {
  Request& committed = request(slot);
  if (accepted < 0 || accepted > options_.rows_per_request) {
    throw Error(Fault::kInternal, "commit of " + std::to_string(accepted) + " rows; a step has " +
                                      std::to_string(options_.rows_per_request));
  }
  if (accepted == 0) return;
  if (options_.commit == CommitMode::kReplay) {
    committed.half = 1 - committed.half;
    committed.pending = accepted;
  } else {
    for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
      std::copy_n(KdaScratch(kda, slot, accepted - 1, 0), state_floats_, Base(0, kda, slot));
    }
    AdvanceWindow(slot, accepted);
  }
  committed.length += accepted;
}

// Scratch mode: the window becomes the last three of [window, accepted inputs].
void State::AdvanceWindow(int slot, int accepted) {
  const int kept = kConvWidth - 1;
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    for (int entry = 0; entry < kept; ++entry) {
      const int source = entry + accepted;  // in [window, inputs]; later entries are still unread
      const bf16* from =
          source < kept ? Window(0, kda, slot, source) : Inputs(0, kda, slot, source - kept);
      std::copy_n(from, channels_, Window(0, kda, slot, entry));
    }
  }
}

void State::CurrentState(std::int64_t kda, int slot, float* target) {
  const Request& current = request(slot);
  const std::int64_t dim = model_.kda_dim;
  std::copy_n(KdaBase(kda, slot, 0), state_floats_, target);
  for (int row = 0; row < current.pending; ++row) {
    const KdaLog log = PendingLog(kda, slot, row);
    for (std::int64_t v = 0; v < model_.kda_channels(); ++v) {
      const std::int64_t head = v / dim * dim;
      UpdateStateRow(target + v * dim, log.decay + head, log.key + head, log.delta[v], dim);
    }
  }
}

void State::Flush(int slot) {
  Request& flushed = request(slot);
  if (flushed.pending == 0) return;
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    CurrentState(kda, slot, KdaNextBase(kda, slot, 0));
    for (int entry = 0; entry < kConvWidth - 1; ++entry) {
      std::copy_n(WindowEntry(kda, slot, kConvWidth - 2 - entry), channels_,
                  NextWindow(kda, slot, entry));
    }
  }
  flushed.half = 1 - flushed.half;
  flushed.pending = 0;
}

void State::SetLength(int slot, std::int64_t length) {
  Request& set = request(slot);
  Reserve(slot, length - set.length);
  set.length = length;
}

// ---- addresses ----

bf16* State::Latent(std::int64_t dsa, int slot, std::int64_t position) {
  const int page = request(slot).token_pages[static_cast<std::size_t>(position / kPageSlots)];
  const std::int64_t entry =
      (dsa * token_pool_.pages() + page) * kPageSlots + position % kPageSlots;
  return latents_.data() + entry * model_.kv_lora;
}

PoolEntry State::Pool(std::int64_t dsa, int slot, std::int64_t pool) {
  const int page = request(slot).pool_pages[static_cast<std::size_t>(pool / kPageSlots)];
  std::uint8_t* bytes = pools_.data() + (dsa * pool_pool_.pages() + page) * pool_page_bytes_;
  const std::int64_t entry = pool % kPageSlots;
  return {reinterpret_cast<e4m3*>(bytes + entry * model_.index_dim),
          reinterpret_cast<float*>(bytes + kPageSlots * model_.index_dim) + entry};
}

bf16* State::Ring(std::int64_t dsa, int slot, std::int64_t position) {
  const std::int64_t entry = (dsa * options_.slots + slot) * ring_width() + position % ring_width();
  return ring_.data() + entry * 2 * model_.index_dim;
}

float* State::Base(int half, std::int64_t kda, int slot) {
  return base_.data() +
         ((half * model_.kda_layers() + kda) * options_.slots + slot) * state_floats_;
}

const float* State::KdaBase(std::int64_t kda, int slot, std::int64_t head) const {
  return const_cast<State*>(this)->Base(request(slot).half, kda, slot) +
         head * model_.kda_dim * model_.kda_dim;
}

float* State::KdaNextBase(std::int64_t kda, int slot, std::int64_t head) {
  return Base(1 - request(slot).half, kda, slot) + head * model_.kda_dim * model_.kda_dim;
}

float* State::KdaScratch(std::int64_t kda, int slot, int row, std::int64_t head) {
  const std::int64_t entry = (kda * options_.slots + slot) * options_.rows_per_request + row;
  return scratch_.data() + entry * state_floats_ + head * model_.kda_dim * model_.kda_dim;
}

float* State::LogRow(int half, std::int64_t kda, int slot, int row) {
  const std::int64_t entry = (half * model_.kda_layers() + kda) * options_.slots + slot;
  return log_.data() + (entry * options_.rows_per_request + row) * log_floats_;
}

KdaLog State::LogAt(int half, std::int64_t kda, int slot, int row) {
  float* log = LogRow(half, kda, slot, row);
  return {log, log + model_.kda_channels(), log + 2 * model_.kda_channels()};
}

KdaLog State::PendingLog(std::int64_t kda, int slot, int row) {
  return LogAt(request(slot).half, kda, slot, row);
}

KdaLog State::NextLog(std::int64_t kda, int slot, int row) {
  return LogAt(1 - request(slot).half, kda, slot, row);
}

bf16* State::Window(int half, std::int64_t kda, int slot, int entry) {
  const std::int64_t at = (half * model_.kda_layers() + kda) * options_.slots + slot;
  return window_.data() + (at * (kConvWidth - 1) + entry) * channels_;
}

bf16* State::Inputs(int half, std::int64_t kda, int slot, int row) {
  const std::int64_t at = (half * model_.kda_layers() + kda) * options_.slots + slot;
  return inputs_.data() + (at * options_.rows_per_request + row) * channels_;
}

const bf16* State::WindowEntry(std::int64_t kda, int slot, int age) const {
  auto* self = const_cast<State*>(this);
  const Request& current = request(slot);
  const int row = current.pending - 1 - age;  // negative: older than the pending rows
  return row >= 0 ? self->Inputs(current.half, kda, slot, row)
                  : self->Window(current.half, kda, slot, kConvWidth - 1 + row);
}

bf16* State::NextInputs(std::int64_t kda, int slot, int row) {
  const int half = request(slot).half;
  return Inputs(options_.commit == CommitMode::kReplay ? 1 - half : half, kda, slot, row);
}

bf16* State::NextWindow(std::int64_t kda, int slot, int entry) {
  return Window(1 - request(slot).half, kda, slot, entry);
}

// ---- what counts ----

void State::VisitTokens(std::int64_t dsa, int slot, std::int64_t begin, std::int64_t end,
                        const Visit& visit) {
  const std::string name = "dsa " + std::to_string(dsa);
  for (std::int64_t p = begin; p < end; ++p) {
    visit(name + " latent of " + std::to_string(p), Bytes(Latent(dsa, slot, p), model_.kv_lora));
  }
  for (std::int64_t pool = begin / kPoolTokens; pool < end / kPoolTokens; ++pool) {
    const PoolEntry entry = Pool(dsa, slot, pool);
    visit(name + " pool " + std::to_string(pool), Bytes(entry.key, model_.index_dim));
    visit(name + " scale of pool " + std::to_string(pool), Bytes(entry.scale, 1));
  }
}

void State::ForEachVisible(int slot, bool mtp_layer, const Visit& visit) {
  const std::int64_t length = request(slot).length;
  const std::int64_t layers = model_.dsa_layers() - (model_.mtp && !mtp_layer ? 1 : 0);
  for (std::int64_t dsa = 0; dsa < layers; ++dsa) {
    VisitTokens(dsa, slot, 0, length, visit);
    for (std::int64_t p = length / kPoolTokens * kPoolTokens; p < length; ++p) {
      visit("dsa " + std::to_string(dsa) + " ring",
            Bytes(Ring(dsa, slot, p), 2 * model_.index_dim));
    }
  }
  std::vector<float> state(static_cast<std::size_t>(state_floats_));
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    const std::string name = "kda " + std::to_string(kda);
    CurrentState(kda, slot, state.data());
    visit(name + " state", Bytes(state.data(), state_floats_));
    for (int age = kConvWidth - 2; age >= 0; --age) {
      visit(name + " window", Bytes(WindowEntry(kda, slot, age), channels_));
    }
  }
}

void State::ForEachWritten(int slot, int rows, const Visit& visit) {
  const std::int64_t length = request(slot).length;
  const std::int64_t layers = model_.dsa_layers() - (model_.mtp ? 1 : 0);
  for (std::int64_t dsa = 0; dsa < layers; ++dsa) {
    VisitTokens(dsa, slot, length, length + rows, visit);
    for (std::int64_t p = length; p < length + rows; ++p) {
      visit("dsa " + std::to_string(dsa) + " ring of " + std::to_string(p),
            Bytes(Ring(dsa, slot, p), 2 * model_.index_dim));
    }
  }
  const bool replay = options_.commit == CommitMode::kReplay;
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    const std::string name = "kda " + std::to_string(kda);
    if (replay) visit(name + " base", Bytes(KdaNextBase(kda, slot, 0), state_floats_));
    for (int row = 0; row < rows; ++row) {
      const std::string of = " of row " + std::to_string(row);
      visit(name + " inputs" + of, Bytes(NextInputs(kda, slot, row), channels_));
      if (replay) {
        visit(name + " log" + of, Bytes(NextLog(kda, slot, row).key, log_floats_));
      } else {
        visit(name + " state" + of, Bytes(KdaScratch(kda, slot, row, 0), state_floats_));
      }
    }
    for (int entry = 0; replay && entry < kConvWidth - 1; ++entry) {
      visit(name + " window", Bytes(NextWindow(kda, slot, entry), channels_));
    }
  }
}

std::uint64_t State::Fingerprint(int slot, bool mtp_layer) {
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  ForEachVisible(slot, mtp_layer, [&](const std::string&, std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
    }
  });
  return hash;
}

void State::PoisonUnreadable() {
  const auto poison_free = [](const PagePool& pool, const auto& poison_page) {
    for (int page = 0; page < pool.pages(); ++page) {
      if (pool.free(page)) poison_page(page);
    }
  };
  for (std::int64_t dsa = 0; dsa < model_.dsa_layers(); ++dsa) {
    poison_free(token_pool_, [&](std::int64_t page) {
      const std::int64_t size = kPageSlots * model_.kv_lora;
      Poison(latents_.data() + (dsa * token_pool_.pages() + page) * size, size);
    });
    poison_free(pool_pool_, [&](std::int64_t page) {
      Poison(pools_.data() + (dsa * pool_pool_.pages() + page) * pool_page_bytes_,
             pool_page_bytes_);
    });
  }
  if (!scratch_.empty()) Poison(scratch_.data(), static_cast<std::int64_t>(scratch_.size()));
  for (int slot = 0; slot < options_.slots; ++slot) PoisonRequest(slot);
}

void State::PoisonRequest(int slot) {
  const Request& poisoned = requests_[static_cast<std::size_t>(slot)];
  const std::int64_t length = poisoned.length;
  for (std::int64_t dsa = 0; dsa < model_.dsa_layers(); ++dsa) {
    for (std::int64_t p = 0; p < ring_width(); ++p) {  // ring entries of positions length + p
      const bool readable = p >= ring_width() - length % kPoolTokens;
      if (!poisoned.live || !readable) Poison(Ring(dsa, slot, length + p), 2 * model_.index_dim);
    }
    if (!poisoned.live || length % kPageSlots == 0) continue;
    if (token_pool_.shared(poisoned.token_pages[static_cast<std::size_t>(length / kPageSlots)]))
      continue;
    for (std::int64_t p = length; p % kPageSlots != 0; ++p)
      Poison(Latent(dsa, slot, p), model_.kv_lora);
  }
  const bool replay = options_.commit == CommitMode::kReplay;
  for (std::int64_t kda = 0; kda < model_.kda_layers(); ++kda) {
    const int unused = poisoned.live ? 1 - poisoned.half : 0;
    const int rows = options_.rows_per_request, pending = poisoned.live ? poisoned.pending : 0;
    Poison(Window(unused, kda, slot, 0), (kConvWidth - 1) * channels_);
    Poison(Inputs(unused, kda, slot, 0), rows * channels_);
    Poison(Inputs(1 - unused, kda, slot, pending), (rows - pending) * channels_);
    if (!replay) continue;
    Poison(Base(unused, kda, slot), state_floats_);
    Poison(LogRow(unused, kda, slot, 0), rows * log_floats_);
    Poison(LogRow(1 - unused, kda, slot, pending), (rows - pending) * log_floats_);
  }
}

}  // namespace assay::engine
