// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A place in the code under test that does something others can see, and the ways in which it may be got wrong.
#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace model {

enum class act : std::uint8_t { load, store, exchange, compare, miss, sleep, wake, streaming_fence };

[[nodiscard]] constexpr const char* name(act what) noexcept {
  switch (what) {
    case act::load: return "load";
    case act::store: return "store";
    case act::exchange: return "read-modify-write";
    case act::compare: return "compare-exchange";
    case act::miss: return "failed compare-exchange";
    case act::sleep: return "sleep";
    case act::wake: return "wake";
    case act::streaming_fence: return "streaming fence";
  }
  return "?";
}
[[nodiscard]] constexpr const char* name(std::memory_order order) noexcept {
  switch (order) {
    case std::memory_order_relaxed: return "relaxed";
    case std::memory_order_consume:
    case std::memory_order_acquire: return "acquire";
    case std::memory_order_release: return "release";
    case std::memory_order_acq_rel: return "acq_rel";
    case std::memory_order_seq_cst: return "seq_cst";
  }
  return "?";
}

struct site {
  const char* file = "";
  std::uint32_t line = 0;
  std::uint32_t column = 0;
  act what = act::load;
  std::memory_order order = std::memory_order_seq_cst;

  [[nodiscard]] static site of(const std::source_location& at, act what, std::memory_order order) noexcept {
    return {at.file_name(), at.line(), at.column(), what, order};
  }
  // The name of a file is one object in one program that has one source.
  friend bool operator==(const site& a, const site& b) noexcept {
    return a.line == b.line && a.column == b.column && a.what == b.what && a.order == b.order &&
           (a.file == b.file || std::string_view(a.file) == b.file);
  }

  /// The source line, as it stands.
  [[nodiscard]] std::string code() const { return lines(1); }
  /// With the line before it.
  [[nodiscard]] std::string context() const { return lines(2); }
  [[nodiscard]] std::string text() const {
    const std::string_view path(file);
    return std::string(path.substr(path.rfind('/') + 1)) + ":" + std::to_string(line) + " " + name(what) + " " +
           name(order);
  }

 private:
  [[nodiscard]] std::string lines(std::uint32_t count) const {
    std::ifstream source(file);
    std::string text, out;
    for (std::uint32_t i = 1; i <= line && std::getline(source, text); ++i) {
      if (i + count <= line) continue;
      const std::size_t first = text.find_first_not_of(' ');
      if (first == std::string::npos) continue;
      if (!out.empty()) out += " ";
      out += text.substr(first);
    }
    return out;
  }
};

/// A seeded mistake: an order weakened by one step, an operation left out, or done after the thread's next one.
struct mutant {
  enum class mistake_kind : std::uint8_t { none, weaker, omitted, late };
  mistake_kind how = mistake_kind::none;
  site where;
  std::memory_order to = std::memory_order_relaxed;

  [[nodiscard]] std::string text() const {
    std::string out = where.text();
    if (how == mistake_kind::weaker) out += std::string(" -> ") + name(to);
    if (how == mistake_kind::omitted) out += " left out";
    if (how == mistake_kind::late) out += " after the next operation";
    return out;
  }
};

/// The orders one step weaker.
[[nodiscard]] inline std::vector<std::memory_order> weaker(act what, std::memory_order order) {
  using enum std::memory_order;
  switch (order) {
    case seq_cst:
      if (what == act::load || what == act::miss) return {acquire};
      if (what == act::store) return {release};
      return {acq_rel};
    case acq_rel: return {acquire, release};
    case acquire:
    case consume:
    case release: return {relaxed};
    case relaxed: return {};
  }
  return {};
}

}  // namespace model
