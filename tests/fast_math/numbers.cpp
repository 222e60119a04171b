// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Built with -Ofast and the like: kernels have the values that they promise for normal numbers, with and without
// subnormal numbers flushed to 0, and what refuses infinities and NaNs does so. What is right is decided by integers.
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "belay/comm/call_arguments.hpp"
#include "belay/comm/reduce_simd.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/finite.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/losses.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/kernel/quantize.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/parallel/routing.hpp"
#include "belay/report/step_line.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/safetensors/scanner.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace belay;

template <class T>
using bits_of = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t>;

// What no compiler sees.
template <class T>
T hidden(T value) {
  volatile bits_of<T> kept = std::bit_cast<bits_of<T>>(value);
  return std::bit_cast<T>(static_cast<bits_of<T>>(kept));
}
template <class T>
T unbounded() {
  return hidden(std::bit_cast<T>(static_cast<bits_of<T>>(infinity_bits<T>)));
}
template <class T>
T not_a_number() {
  return hidden(std::bit_cast<T>(static_cast<bits_of<T>>(infinity_bits<T> | (infinity_bits<T> >> 1))));
}

template <class T>
bits_of<T> bits(T x) {
  return std::bit_cast<bits_of<T>>(x);
}

// How many numbers lie between two, which are of one sign.
template <class T>
double numbers_between(T a, T b) {
  const auto x = static_cast<std::int64_t>(bits(a)), y = static_cast<std::int64_t>(bits(b));
  return static_cast<double>(x < y ? y - x : x - y);
}

// Calls `check` as the processor is, and where it flushes subnormal numbers to 0.
void each_mode(const std::function<void()>& check) {
  check();
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before ^ 0x8040u);
  check();
  _mm_setcsr(before);
#endif
}

// The largest error of `y = f(x)` over many numbers from `low` to `high`, in numbers of T.
template <class T, class Function, class Wanted>
double worst(T low, T high, Function f, Wanted wanted) {
  constexpr std::size_t count = 1 << 14;
  static std::vector<T> x(count), y(count);
  double out = 0;
  for (const bool even : {true, false}) {  // evenly, and by their exponents
    const auto first = static_cast<double>(bits(low)), last = static_cast<double>(bits(high));
    for (std::size_t i = 0; i < count; ++i) {
      const double share = static_cast<double>(i) / count;
      const bool by_bits = !even && low > 0;
      x[i] = by_bits ? std::bit_cast<T>(static_cast<bits_of<T>>(first + (last - first) * share))
                     : static_cast<T>(low + (high - low) * static_cast<T>(share));
    }
    for (std::size_t i = 0; i < count; ++i) y[i] = f(x[i]);  // in vectors
    for (std::size_t i = 0; i < count; ++i)
      out = greater_of(out, numbers_between(y[i], static_cast<T>(wanted(static_cast<long double>(x[i])))));
  }
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("functions have the values that they promise for normal numbers", T, float, double) {
  constexpr bool wide = std::is_same_v<T, double>;
  const auto e = [](long double x) { return std::exp(x); };
  const auto s = [](long double x) { return 1 / (1 + std::exp(-x)); };
  each_mode([&] {
    const T lowest = wide ? T(-708) : T(-87.3), highest = wide ? T(709.7) : T(88.7),
            smallest = wide ? T(1e-307) : T(1.2e-38);
    CHECK(worst<T>(lowest, highest, [](T x) { return kernel::exponential(x); }, e) <= 2);
    CHECK(worst<T>(smallest, highest, [](T x) { return kernel::exponential(x); }, e) <= 2);
    CHECK(worst<T>(T(-1), T(1), [](T x) { return kernel::exponential(x); }, e) <= 2);
    for (const T high : {T(4), largest_value<T>}) {
      CHECK(worst<T>(
                smallest, high, [](T x) { return kernel::square_root(x); },
                [](long double x) { return std::sqrt(x); }) <= 1);
      CHECK(worst<T>(
                smallest, high, [](T x) { return kernel::logarithm(x); }, [](long double x) { return std::log(x); }) <=
            2);
    }
    CHECK(worst<T>(T(-80), T(80), [](T x) { return kernel::sigmoid(x); }, s) <= 4);
    CHECK(
        worst<T>(T(-80), T(-1e-3), [](T x) { return kernel::silu(x); }, [&](long double x) { return x * s(x); }) <= 6);
    CHECK(kernel::silu(hidden(T(-1000))) == T(0));
    CHECK(kernel::exponential(hidden(T(-1000))) == T(0));
    CHECK(bits(kernel::exponential(hidden(T(1000)))) == infinity_bits<T>);
  });
}

TEST_CASE_TEMPLATE("functions end in 0, infinity and NaN as they do without", T, float, double) {
  using kernel::exponential, kernel::logarithm, kernel::square_root;
  const T inf = unbounded<T>(), nan = not_a_number<T>();
  CHECK(bits(exponential(inf)) == infinity_bits<T>);
  CHECK(exponential(-inf) == T(0));
  CHECK((is_nan(exponential(nan)) && is_nan(exponential(-nan)) && is_nan(kernel::silu(nan)) &&
         is_nan(kernel::sigmoid(nan))));
  CHECK(bits(logarithm(hidden(T(0)))) == bits(-inf));
  CHECK(bits(logarithm(inf)) == infinity_bits<T>);
  CHECK((is_nan(logarithm(hidden(T(-1)))) && is_nan(logarithm(nan))));
  CHECK(square_root(hidden(T(0))) == T(0));
  CHECK(bits(square_root(inf)) == infinity_bits<T>);
  CHECK((is_nan(square_root(hidden(T(-1)))) && is_nan(square_root(nan))));
}

TEST_CASE("a softmax is right, ignores what is minus infinity, and is NaN as a whole where one element is") {
  const auto softmax = [](std::array<float, 3> x) {
    for (float& each : x) each = hidden(each);
    kernel::for_each_row(1, kernel::causal_softmax_rows<float>{x.data(), x.data(), x.size(), 1, x.size() - 1});
    return x;
  };
  const auto right = softmax({1, 2, -unbounded<float>()});
  CHECK(right[0] == doctest::Approx(0.2689414));
  CHECK(right[1] == doctest::Approx(0.7310586));
  CHECK(right[2] == 0);
  for (const float bad : {not_a_number<float>(), unbounded<float>()})
    for (std::size_t at = 0; at < 3; ++at) {
      std::array<float, 3> x{1, 2, 3};
      x[at] = bad;
      for (const float each : softmax(x)) CHECK(!is_finite(each));
    }
}

TEST_CASE_TEMPLATE("what is not finite is found by its bits, however it was made", T, float, double) {
  const T large = hidden(largest_value<T>);
  CHECK((is_finite(large) && is_finite(-large) && is_finite(hidden(T(0))) && !is_nan(large)));
  CHECK(!is_finite(large * large));
  CHECK((!is_nan(unbounded<T>()) && is_nan(not_a_number<T>()) && is_nan(unbounded<T>() * hidden(T(0)))));
  std::vector<T> x(100, T(1));
  CHECK(kernel::are_finite(x.data(), x.size()));
  for (const T bad : {unbounded<T>(), -unbounded<T>(), not_a_number<T>()}) {
    x[63] = bad;
    CHECK(!kernel::are_finite(x.data(), x.size()));
    CHECK(!is_finite(kernel::sum_of_squares(x.data(), x.size())));
  }
  kernel::findings_record record;
  kernel::findings_note{&record, {}}.add_loss(static_cast<double>(large) * static_cast<double>(large) *
                                              static_cast<double>(large) * static_cast<double>(large) * 1e300);
  CHECK(record.not_finite == 1);
}

TEST_CASE("logits that are not numbers choose different experts that exist") {
  constexpr std::size_t experts = 4, k = 2;
  for (const float bad : {not_a_number<float>(), unbounded<float>(), -unbounded<float>()})
    for (std::size_t first = 0; first < experts; ++first) {
      std::array<float, experts> logits{1, 2, 3, 4}, probabilities{};
      for (std::size_t e = first; e < experts; ++e) logits[e] = bad;
      std::array<std::int32_t, k> choices{-1, -1};
      std::array<float, k> weights{};
      kernel::for_each_row(1, route_row<float>{logits.data(), choices.data(), weights.data(), probabilities.data(),
                                               experts, k, 0});
      CHECK((choices[0] >= 0 && choices[0] < 4 && choices[1] >= 0 && choices[1] < 4 && choices[0] != choices[1]));
    }
}

TEST_CASE("narrow formats round, overflow and keep NaN") {
  const float nan = not_a_number<float>(), inf = unbounded<float>();
  CHECK((is_nan(bf16(nan)) && is_nan(fp16(nan)) && is_nan(fp8_e4m3(nan)) && !is_finite(bf16(inf)) &&
         !is_finite(fp16(hidden(1e6F)))));
  CHECK((bf16(nan) != bf16(nan) && fp8_e4m3(nan) != fp8_e4m3(nan) && bf16(0.0F) == bf16(-0.0F) &&
         bf16(inf) == bf16(inf)));
  CHECK(static_cast<float>(fp16(hidden(1e-7F))) == 0x1p-23F);  // subnormal there, not here
  std::vector<float> in(128, 1.0F), out(in.size());
  in[3] = nan, in[5] = inf;
  std::vector<fp8_e4m3> narrow(in.size());
  float scale = 0;
  kernel::findings_record found;
  kernel::for_each_row(
      1, kernel::quantize_rows<fp8_block<128>, float>{in.data(), narrow.data(), &scale, in.size(), {&found, {}}});
  kernel::for_each_row(1, kernel::dequantize_rows<fp8_block<128>, float>{narrow.data(), &scale, out.data(), in.size()});
  CHECK((is_nan(out[3]) && is_nan(out[5]) && out[4] == 1.0F && found.quantized_not_finite == 2));
}

TEST_CASE_TEMPLATE("a minimum and a maximum keep a NaN from either side", T, float, double) {
  std::vector<T> a(40, T(1)), b(40, T(2)), out(40);
  a[5] = not_a_number<T>(), b[7] = not_a_number<T>();
  const std::byte* const from[] = {reinterpret_cast<const std::byte*>(a.data()),
                                   reinterpret_cast<const std::byte*>(b.data()),
                                   reinterpret_cast<const std::byte*>(a.data())};
  std::byte* const to[] = {reinterpret_cast<std::byte*>(out.data())};
  const auto check = [&](T want) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      CHECK(is_nan(out[i]) == (i == 5 || i == 7));
      if (i != 5 && i != 7) CHECK(out[i] == want);
    }
  };
  reduce_elements<minimum_t, T>(from, to, a.size()), check(T(1));
  reduce_elements<maximum_t, T>(from, to, a.size()), check(T(2));
}

TEST_CASE("an update of AdamW is that of its formula") {
  each_mode([] {
    std::vector<float> value(64, 0.5F), gradient(64), first(64), second(64);
    for (std::size_t i = 0; i < 64; ++i) gradient[i] = 1e-3F * static_cast<float>(i + 1);
    const kernel::adamw_settings by;
    kernel::for_each_index(64, kernel::adamw<float>{value.data(), gradient.data(), first.data(), second.data(),
                                                    kernel::adamw_at_step<float>(by, 1)});
    for (std::size_t i = 0; i < 64; ++i)
      CHECK(static_cast<double>(value[i]) == doctest::Approx(0.5 * (1 - 1e-4) - 1e-3).epsilon(1e-6));
  });
}

TEST_CASE("a line of JSON has no number that JSON does not have, and a time that was not measured is left out") {
  step_line line(1, 0, 0);
  step_report report;
  report.loss = not_a_number<double>(), report.grad_norm = unbounded<double>(), report.bubble = not_a_number<double>();
  const std::string json(line.json(report));
  CHECK(json.find("\"loss\":null") != std::string::npos);
  CHECK(json.find("\"grad_norm\":null") != std::string::npos);
  CHECK(json.find("bubble") == std::string::npos);
  CHECK(json.find("nan") == std::string::npos);
  CHECK(json.find("inf") == std::string::npos);
}

TEST_CASE("limits, clips and numbers of a manifest that are none are refused") {
  const auto refused = [](const std::function<void()>& action) {
    try {
      action();
    } catch (const belay::error&) {
      return true;
    }
    return false;
  };
  using seconds = std::chrono::duration<double>;
  CHECK(refused([] { static_cast<void>(checked_timeout(seconds(not_a_number<double>()), where::current())); }));
  CHECK(checked_timeout(seconds(unbounded<double>()), where::current()) == std::chrono::hours(24 * 365));
  for (const char* const text : {"inf", "nan", "1e999", "-1"}) {
    ::setenv("BELAY_TIMEOUT", text, 1);
    CHECK(refused([] { static_cast<void>(timeout_of_environment()); }));
  }
  ::unsetenv("BELAY_TIMEOUT");
  CHECK(!gradient_norm_value{unbounded<double>()}.finite());
  CHECK(gradient_norm_value{2.0}.clip(1.0).value() == doctest::Approx(0.5));
  const std::string path = "manifest";
  for (const std::string_view text : {"nan", "inf", "1e999"}) {
    CHECK(refused([&] {
      safetensors::header_scanner scan(text, path, where::current());
      static_cast<void>(scan.number());
    }));
  }
}
