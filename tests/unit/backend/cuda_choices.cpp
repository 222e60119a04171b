// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which of a library's algorithms products take, over a device of the host whose library answers as a test says.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/core/dtype.hpp"
#include "unit/backend/fake_cuda.hpp"

using namespace fake_cuda;
using belay::bf16;
using belay::cuda::result_bits;
using answer = fakes::device_api::answer;

static_assert(belay::cuda::choosing_api<api_type, float, bf16> && !belay::cuda::choosing_api<api_type, float, float>);

namespace {

constexpr std::size_t room = fakes::device_api::workspace_bytes();

// A kit with all of its workspace, and operands from the first byte on.
struct products : bench {
  explicit products(std::vector<answer> answers, const fakes::device_options& how = {})
      : bench(how), workspace(gpu, kit.workspace_bytes()) {
    api.answers_of = [all = std::move(answers)](const belay::cuda::product_problem&) { return all; };
    kit.use_workspace({workspace.data(), workspace.size_bytes()});
  }
  template <class C = bf16>
  [[nodiscard]] belay::product_call<C, bf16> call(std::size_t rows, std::size_t first = 0) {
    const auto at = [&](std::size_t byte) { return on_device<bf16>(byte) + first; };
    return {{on_device<C>(16384), rows, 8, 8}, {at(0), rows, 24, 24}, {at(8192), 24, 8, 8}};
  }
  void multiply(std::size_t rows, std::size_t first = 0) { kit.product(call(rows, first)); }

  memory_type workspace;
};

answer numbered(int number, std::size_t bytes, result_bits bits = result_bits::repeated) {
  return {{number}, static_cast<std::uint64_t>(number), bytes, bits};
}

}  // namespace

TEST_CASE("a product takes the first answer whose bits are the same each time and that fits the planned workspace") {
  products with({numbered(1, 0, result_bits::varying), numbered(2, room + 1), numbered(3, room), numbered(4, 0)});
  with.multiply(16);
  CHECK(with.api.products_by() == std::vector{3});
}

TEST_CASE("a library is asked once for a shape, and a product by it is one call of the device") {
  products with({numbered(7, 64)});
  with.multiply(16);
  const std::size_t calls = with.api.calls_so_far();
  for (int i = 0; i < 5; ++i) with.multiply(16);
  CHECK(with.api.calls_so_far() == calls + 5);
  CHECK(with.api.questions() == 1);
  with.multiply(24);     // other rows
  with.multiply(16, 1);  // operands that are aligned to 2 bytes
  with.kit.product(with.call<float>(16));
  CHECK(with.api.questions() == 4);
  CHECK(with.kit.choices().all().size() == 4);
  CHECK(with.api.products_by() == std::vector<int>(9, 7));
}

TEST_CASE("a sum of nothing, and products of float, ask no library") {
  products with({});
  with.kit.product(belay::product_call<bf16>{
      {with.on_device<bf16>(0), 4, 4, 4}, {with.on_device<bf16>(64), 4, 0, 0}, {with.on_device<bf16>(64), 0, 4, 4}});
  with.kit.product(belay::product_call<float>{
      {with.on_device<float>(0), 4, 4, 4}, {with.on_device<float>(64), 4, 4, 4}, {with.on_device<float>(64), 4, 4, 4}});
  CHECK(with.api.questions() == 0);
}

TEST_CASE("where no answer serves, the error has the shape, and the bytes that the least would need") {
  const auto refusal = [](std::vector<answer> answers) {
    products with(std::move(answers));
    try {
      with.multiply(16);
    } catch (const belay::backend_error& problem) {
      CHECK(with.api.products_by().empty());
      CHECK(problem.about().call == "product");
      return std::string(problem.what()) + " / " + std::to_string(problem.about().bytes);
    }
    return std::string("multiplied");
  };
  const std::string large = refusal({numbered(1, 9000), numbered(2, 5000), numbered(3, 0, result_bits::varying)});
  CAPTURE(large);
  CHECK(large.find("[16, 8] = [16, 24] x [24, 8] of BF16 in BF16, strides 8 24 8, aligned to 16 16 16") !=
        std::string::npos);
  CHECK(large.find("of 3 answers 1 would have other bits each time, and the others need 5000 bytes of workspace or "
                   "more, where 4096 are planned / 5000") != std::string::npos);
  CHECK(refusal({numbered(3, 0, result_bits::varying)}).find("of 1 answers 1 would have other bits each time / 0") !=
        std::string::npos);
  CHECK(refusal({}).find("of 0 answers 0 would have other bits each time / 0") != std::string::npos);
}

TEST_CASE("with other workspace a library is asked again") {
  products with({numbered(1, room), numbered(2, 0)});
  with.multiply(16);
  with.kit.use_workspace({with.workspace.data(), 512});
  with.multiply(16);
  CHECK(with.api.products_by() == std::vector{1, 2});
  REQUIRE(with.kit.choices().all().size() == 1);
  CHECK(with.kit.choices().all()[0].way == 2);
}
