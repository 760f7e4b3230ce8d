"""What is counted in generated source, against counts by hand."""

from graphopt.hardware.inductor.code_features import source_work

KERNEL = """x = async_compile.cpp_pybinding(['float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0)
{
    {
        #pragma GCC ivdep
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(10L); x0+=static_cast<int64_t>(1L))
        {
            for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(40L); x1+=static_cast<int64_t>(16L))
            {
                {
                    if(C10_LIKELY(x1 >= static_cast<int64_t>(0) && x1 < static_cast<int64_t>(32L)))
                    {
                        auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x1 + 40L*x0), static_cast<int64_t>(16));
                        auto tmp1 = in_ptr0[static_cast<int64_t>(x0)];
                        auto tmp2 = static_cast<float>(64.0);
                        auto tmp3 = tmp1 / tmp2;
                        auto tmp4 = at::vec::Vectorized<float>(tmp3);
                        auto tmp5 = tmp0 * tmp4;
                        auto tmp6 = decltype(tmp5)(1)/(decltype(tmp5)(1) + tmp5.neg().exp());
                        tmp6.store(out_ptr0 + static_cast<int64_t>(x1 + 40L*x0));
                    }
                    if(C10_UNLIKELY(x1 >= static_cast<int64_t>(32L) && x1 < static_cast<int64_t>(40L)))
                    {
                        for (int64_t x1_tail = static_cast<int64_t>(32L);x1_tail < static_cast<int64_t>(40L); x1_tail++)
                        {
                            auto tmp0 = in_ptr0[static_cast<int64_t>(x1_tail + 40L*x0)];
                            auto tmp1 = std::tanh(tmp0);
                            out_ptr0[static_cast<int64_t>(x1_tail + 40L*x0)] = tmp1;
                        }
                    }
                }
            }
        }
    }
}
''')"""  # noqa: E501


def test_instructions_run_as_often_as_their_loops() -> None:
    """10 rows of two whole vectors, and of 8 numbers one by one."""
    work = source_work(KERNEL)
    assert work.pop("trips") == 10 + 10 * 3 + 10 * 8
    assert work == {
        "v.load": 20, "v.store": 20, "v.exp": 20, "v.div": 20,
        "v.simple": 20 * 3,  # a product, a sum and a change of sign
        "s.load": 20 + 80, "s.div": 20, "s.tanh": 80, "s.store": 80,
    }  # fmt: skip
