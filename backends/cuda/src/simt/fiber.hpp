// SPDX-License-Identifier: Apache-2.0
// A thread of control with a stack of its own, that runs until it gives way.
#pragma once

#if !defined(__x86_64__) || defined(__APPLE__) || defined(_WIN32)
#include <ucontext.h>
#define SLIMPACK_FIBER_UCONTEXT
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace slimpack::cuda::simt {

#if !defined(SLIMPACK_FIBER_UCONTEXT)

namespace detail {
/// Puts what a callee must preserve on this stack, leaves its pointer in *from and goes on with the
/// stack `to`. Unlike swapcontext it does not enter the kernel of the system.
[[gnu::naked, gnu::noinline]] inline void switch_stack(void** /*from*/, void* /*to*/) {
  asm("pushq %rbp\n\t"
      "pushq %rbx\n\t"
      "pushq %r12\n\t"
      "pushq %r13\n\t"
      "pushq %r14\n\t"
      "pushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\t"
      "popq %r14\n\t"
      "popq %r13\n\t"
      "popq %r12\n\t"
      "popq %rbx\n\t"
      "popq %rbp\n\t"
      "ret");
}
}  // namespace detail

class Fiber {
 public:
  /// Will run `entry`, which must never return.
  void prepare(void (*entry)()) {
    if (!stack_) stack_ = std::make_unique_for_overwrite<std::byte[]>(kStack);
    auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + kStack);
    top -= top % 16;  // where a call would leave its return address
    auto* words = reinterpret_cast<std::uintptr_t*>(top);
    words[-1] = 0;
    words[-2] = reinterpret_cast<std::uintptr_t>(entry);
    for (int preserved = 3; preserved <= 8; ++preserved) words[-preserved] = 0;
    inside_ = words - 8;
  }
  /// Goes on with the fiber until it gives way.
  void resume() { detail::switch_stack(&outside_, inside_); }
  /// Only within the fiber: goes on with whoever resumed it.
  void give_way() { detail::switch_stack(&inside_, outside_); }

 private:
  static constexpr std::size_t kStack = 256 * 1024;
  std::unique_ptr<std::byte[]> stack_;
  void* inside_ = nullptr;
  void* outside_ = nullptr;
};

#else

class Fiber {
 public:
  void prepare(void (*entry)()) {
    if (!stack_) stack_ = std::make_unique_for_overwrite<std::byte[]>(kStack);
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_.get();
    inside_.uc_stack.ss_size = kStack;
    inside_.uc_link = nullptr;
    makecontext(&inside_, entry, 0);
  }
  void resume() { swapcontext(&outside_, &inside_); }
  void give_way() { swapcontext(&inside_, &outside_); }

 private:
  static constexpr std::size_t kStack = 256 * 1024;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t inside_{}, outside_{};
};

#endif

}  // namespace slimpack::cuda::simt
